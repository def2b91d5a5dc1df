"""Pipelines without a flush: groups, and bad input; the lessons have the papers' equations."""

from __future__ import annotations

import pytest
import torch

from minitrain.comm import Ledger, messages
from minitrain.comm.mesh import axes
from minitrain.lessons.pipeline_parallel.versions import taken_out
from minitrain.pipeline_parallel import no_stashing, pipedream, splitting, two_buffered, vertical_sync
from tests.pipeline_parallel.models import SEQ, gpt, tokens

LR = 0.05
TEMPLATE = torch.empty(2, SEQ, 6, dtype=torch.float64)  # what passes between the stages of `gpt`
FORMS = {
    "pipedream": pipedream.train,
    "vertical_sync": vertical_sync.train,
    "two_buffered": two_buffered.train,
    "no_stashing": no_stashing.train,
}


def stages_of(ranks):
    model = gpt(ranks + 1)  # the first stage has a block more
    return splitting.split(model, splitting.evenly(model, ranks)), model.loss


def train(form, microbatches, k=None, group=None):
    """The last weights of this rank's stage, and the losses."""
    rank, ranks = messages.rank_and_size(group)
    stages, loss = stages_of(ranks)
    stage = stages[rank]
    versions = {0: taken_out(stage)}
    inputs, targets = tokens(microbatches)
    options = {} if k is None else {"k": k}
    losses = FORMS[form](stage, versions, inputs, targets, loss, TEMPLATE, LR, **options, group=group)
    (weights,) = versions.values()
    return weights, losses


def train_alone(world, *arguments):
    return train(*arguments)


def in_a_group(world, form, microbatches, k):
    return train(form, microbatches, k, axes(dp=2, pp=2)["pp"].get_group())


@pytest.mark.parametrize("form", ("pipedream", "vertical_sync", "two_buffered"))
def test_ranks_are_those_of_the_group(ranks, form):
    for microbatches, k in sizes(form, 2):
        alone, in_groups = (
            ranks(2).run(train_alone, form, microbatches, k),
            ranks(4).run(in_a_group, form, microbatches, k),
        )
        for rank, found in enumerate(in_groups):
            torch.testing.assert_close(found, alone[rank % 2], rtol=0, atol=0)


def sizes(form, ranks):
    """Micro-batches and k: also fewer micro-batches than ranks, and a k that is no multiple of the ranks."""
    if form == "two_buffered":
        return [(4 * ranks, ranks), (3 * (ranks + 1), ranks + 1), (2 * ranks + 2, 2 * ranks + 2)]
    return [(1, None), (max(1, ranks - 1), None), (ranks, None), (2 * ranks + 3, None)]


def like_sgd(world, form):
    """On one rank nothing is stale, and all that update per micro-batch are torch's SGD."""
    stages, loss = stages_of(1)
    optimizer = torch.optim.SGD(stages[0].parameters(), lr=LR)
    for x, target in zip(*tokens(5), strict=True):
        optimizer.zero_grad()
        loss(stages[0](x), target).backward()
        optimizer.step()
    weights, _ = train(form, 5)
    for name, parameter in stages[0].named_parameters():
        torch.testing.assert_close(weights[name], parameter.detach(), rtol=1e-12, atol=1e-14, check_dtype=True)


@pytest.mark.parametrize("form", ("pipedream", "vertical_sync", "no_stashing"))
def test_on_one_rank_it_is_sgd(ranks, form):
    ranks(1).run(like_sgd, form)


def many_in_16_bits(world, microbatches):
    """Versions whose numbers bfloat16 does not hold: the last ones, and how many losses."""
    torch.manual_seed(0)
    whole = [torch.nn.Linear(3, 3) for _ in range(world.size)]
    stage = whole[world.rank].to(torch.bfloat16)
    x = [torch.randn(2, 3, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(microbatches)]
    versions = {0: taken_out(stage)}
    losses = vertical_sync.train(stage, versions, x, x, torch.nn.functional.mse_loss, x[0], 0.01)
    return list(versions), len(losses)


def test_vertical_sync_of_many_micro_batches_in_16_bits(ranks):
    assert ranks(2).run(many_in_16_bits, 300) == [([300], 0), ([300], 300)]


def test_a_run_may_go_on_with_the_versions_that_it_left(ranks):
    ranks(2).run(goes_on)


def goes_on(world):
    """The versions are numbered from 0 again, since the pipeline has drained in between."""
    stages, loss = stages_of(world.size)
    versions = {0: taken_out(stages[world.rank])}
    for number in range(2):
        inputs, targets = tokens(5, number)
        pipedream.train(stages[world.rank], versions, inputs, targets, loss, TEMPLATE, LR)
        (last,) = versions
        assert last == 5
        versions = {0: versions[last]}


def refuses(world, microbatches, k, message):
    with Ledger() as ledger, pytest.raises(AssertionError, match=message):
        train("two_buffered", microbatches, k)
    assert not ledger.sent


@pytest.mark.parametrize(
    ("microbatches", "k", "message"),
    [
        (6, 2, "k=2 micro-batches per update are fewer than the 3 stages; use k=3 or more"),
        (7, 3, "inputs has 7 micro-batches; use a multiple of k=3"),
    ],
)
def test_two_buffered_refuses_on_every_rank_before_anything_is_sent(ranks, microbatches, k, message):
    ranks(3).run(refuses, microbatches, k, message)
