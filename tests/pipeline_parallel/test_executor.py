"""Every schedule on real ranks: tied gradients, all kinds of tensors, the simulator's times, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger, VirtualClock
from minitrain.comm.timeline import Timeline
from minitrain.lessons.pipeline_parallel.bubbles import actions_of, not_as_simulated
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full import mail
from minitrain.pipeline_parallel.full.action_observers import on_timeline, on_virtual_clock
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.full.mail import Mail
from minitrain.pipeline_parallel.full.nccl_order import in_common_order
from minitrain.pipeline_parallel.schedules import SCHEDULES, gpipe, naive, one_f_one_b, pipedream, zero_bubble_h1
from minitrain.ranks.failures import RanksError
from tests.pipeline_parallel.models import Mixed, accumulate, chain, gpt, mixed_inputs, mixed_loss, stages_of, tokens


def schedules(ranks):
    """Every schedule, with fewer micro-batches than stages, as many, and more."""
    for name in SCHEDULES:
        chunks = 2 if name in ("interleaved", "zb-v") else 1
        for microbatches in (ranks, 2 * ranks) if name == "interleaved" else (1, ranks + 2):
            yield SCHEDULES[name](ranks, microbatches, chunks)


def tied_sums(world):
    """The gradient is the sum of both uses, added in the order of stages; a second step adds, and no step twice."""
    schedule = one_f_one_b(world.size, 3)
    apart, model = gpt(schedule.stages), gpt(schedule.stages, tied=True)
    with torch.no_grad():
        apart.head.weight.copy_(apart.embedding.tokens.weight)
    mine, ties = stages_of(model, schedule, world.rank)
    pipeline = Pipeline(mine, schedule, model.loss, ties=ties)
    with Ledger() as ledger:
        pipeline.step(*tokens(3))
    accumulate(apart, *tokens(3))
    once = apart.embedding.tokens.weight.grad + apart.head.weight.grad
    grad = dict(pair for stage in mine for pair in stage.named_in_model()).get(
        "embedding.tokens.weight" if world.rank == 0 else "head.weight", torch.zeros(0)
    )
    if grad.numel():
        assert torch.equal(grad.grad, once)
        assert ledger.entries[-1].bytes == once.nbytes
    pipeline.step(*tokens(3))
    if grad.numel():
        assert torch.equal(grad.grad, once + once)


def test_a_tied_gradient_is_summed_once(ranks):
    ranks(3).run(tied_sums)


def other_kinds(world, make):
    schedule = make(world.size, 3)
    torch.manual_seed(0)
    layers = [Mixed(3, frozen=number == 0) for number in range(world.size)]
    torch.manual_seed(0)
    references = [Mixed(3, frozen=number == 0) for number in range(world.size)]
    pipeline = Pipeline([layers[world.rank]], schedule, mixed_loss, watch=on_timeline(Timeline()))
    for samples in ((3, 3, 2), (1, 4, 1)):  # shapes may change between micro-batches and between steps
        inputs = [mixed_inputs(count, seed) for seed, count in enumerate(samples)]
        targets = [torch.rand(count, 3, generator=torch.Generator().manual_seed(count)) for count in samples]
        shares = [count / sum(samples) for count in samples]
        loss = pipeline.step(inputs, targets, shares)
        expected = torch.zeros((), dtype=torch.float64)
        for x, target, share in zip(inputs, targets, shares, strict=True):
            part = mixed_loss(chain(references, x), target) * share
            if part.requires_grad:
                part.backward()
            expected += part.detach()
        # A message has no gaps, so a product may add in another order than on one device, where the tensor has some.
        if loss is not None:
            torch.testing.assert_close(loss, expected, rtol=1e-13, atol=1e-13)
        for mine, its in zip(layers[world.rank].parameters(), references[world.rank].parameters(), strict=True):
            assert (mine.grad is None) == (its.grad is None)
            if its.grad is not None:
                torch.testing.assert_close(mine.grad, its.grad, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("make", (gpipe, zero_bubble_h1))
def test_tuples_of_tensors_of_all_kinds_and_micro_batches_of_different_sizes(ranks, make):
    ranks(3).run(other_kinds, make)


def on_the_clock(world):
    for number, schedule in enumerate(schedules(world.size)):
        # Other times for each stage and kind, dyadic so that no sum of them rounds.
        times = tuple(
            [Fraction(1 + (stage + kind + number) % 5, 4) for stage in range(schedule.stages)] for kind in range(3)
        )
        clock = VirtualClock()
        stages = [nn.Linear(2, 2) for _ in schedule.stages_of(world.rank)]
        pipeline = Pipeline(stages, schedule, lambda x, target: x.sum(), watch=on_virtual_clock(clock, times))
        with clock:
            pipeline.step([torch.ones(1, 2)] * schedule.microbatches, [None] * schedule.microbatches)
        spans = actions_of(clock.timeline.spans)
        wrong = not_as_simulated(schedule, clock.timeline.gather().spans, times)
        assert wrong == 0, f"{schedule.name}: {wrong} actions at another time than in the simulator"
        assert [span.label for span in spans] == [str(action) for action in schedule.actions[world.rank]]


@pytest.mark.parametrize("size", (1, 2, 4))
def test_real_messages_take_the_time_that_the_simulator_says(ranks, size):
    ranks(size).run(on_the_clock)


def noted(verb, calls, ends, tensor, peer, group):
    calls.append(ends(peer))
    return verb(tensor, peer, group)


def as_nccl_needs(world):
    """All ranks keep the common order, sends and receives together; nobody waits forever."""
    for schedule in schedules(world.size):
        model = gpt(schedule.stages)
        mine, _ = stages_of(model, schedule, world.rank)
        pipeline = Pipeline(mine, schedule, model.loss)
        pipeline._mail = Mail(schedule, world.rank, None, torch.device("cpu"), in_order=True)
        calls = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mail, "send", partial(noted, mail.send, calls, lambda peer: (world.rank, peer)))
            patch.setattr(mail, "receive", partial(noted, mail.receive, calls, lambda peer: (peer, world.rank)))
            pipeline.step(*tokens(schedule.microbatches))
        ends = [(message.source, message.to) for message in in_common_order(schedule)]
        assert calls == [pair for pair in ends if world.rank in pair], schedule.name


@pytest.mark.parametrize("size", (2, 4))
def test_one_order_for_all_messages(ranks, size):
    ranks(size).run(as_nccl_needs)


def refusals(world):
    good = gpipe(2, 2)

    def refused(words, *arguments, **options):
        with pytest.raises(ValueError, match=words):
            Pipeline(*arguments, **options)

    layer, loss = nn.Linear(2, 2), nn.MSELoss()
    refused("schedule=gpipe is for 3 ranks, but the group has 2", [layer], gpipe(3, 2), loss)
    refused(r"stages are 2, but this rank holds the stages \[0\] of gpipe; bring 1", [layer, layer], good, loss)
    refused(r"loss=None, but this rank holds the last stage.* \(rank 1\)", [layer], good)
    refused("schedule=pipedream changes the weights between its actions", [layer], pipedream(2, 2), loss)
    refused("differs between ranks: naive on rank 0, gpipe on rank 1", [layer], (naive, gpipe)[world.rank](2, 2), loss)
    actions = (good.actions[0], tuple(reversed(good.actions[1])))
    refused("1B1 comes before 1F1, which it needs", [layer], Schedule("mine", 2, actions, good.placement), loss)
    other, ties = stages_of(gpt(2, tied=True), good, world.rank)
    if world.rank:
        nn.init.ones_(other[0].get_parameter(ties[0].names[1]))
    refused("0.tokens.weight of stage 0, .* are copies of one parameter, but", other, good, loss, ties=ties)
    pipeline = Pipeline([layer], good, loss)
    x = torch.ones(1, 2)
    for words, *given in (
        ("inputs are missing on rank 0, but the schedule has 2 micro-batches", None, [x, x]),
        ("targets are 3 on rank 1", [x, x], [x, x, x]),
        ("shares are 1 on rank 1", [x, x], [x, x], [1.0]),
    ):
        with pytest.raises(ValueError, match=words):  # on both ranks, before anything is sent
            pipeline.step(*given)
    assert (pipeline.step([x, x], [x, x]) is None) == (world.rank == 0)


def test_what_cannot_be_is_refused_on_every_rank(ranks):
    ranks(2).run(refusals)


class Stops(nn.Module):
    def __init__(self, what, forwards=0):
        super().__init__()
        self.what, self.forwards = what, forwards
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        self.forwards -= 1
        if self.forwards < 0:
            if isinstance(self.what, Exception):
                raise self.what
            return self.what
        return x * self.scale


def run_into(world, stage, make=one_f_one_b):
    schedule = make(world.size, 4)
    mine = stage if world.rank == 1 else nn.Linear(4, 4)
    x = torch.ones(2, 4)
    Pipeline([mine], schedule, lambda outputs, target: outputs.sum()).step([x] * 4, [x] * 4)


@pytest.mark.parametrize(
    ("stage", "words"),
    (
        (
            nn.Linear(6, 4),
            r"stages 0 \(rank 0\) and 1 \(rank 1\) do not meet: stage 1 fails on what comes over the boundary 0\|1, "
            r"float32 \(2, 4\): RuntimeError: mat1 and mat2",
        ),
        (
            Stops(torch.ones(3), 2),
            r"stage 1 gave float32 \(3,\) for micro-batch 2, but float32 \(2, 4\) for micro-batch 0",
        ),
        (Stops(KeyError("in the middle"), 2), "KeyError: 'in the middle'"),
    ),
)
def test_a_rank_that_fails_in_the_middle_ends_the_step_on_all(ranks, stage, words):
    with pytest.raises(RanksError, match=words) as caught:  # rather than words of the time limit
        ranks(3).run(run_into, stage)
    assert sorted(caught.value.failures) == [0, 1, 2]
