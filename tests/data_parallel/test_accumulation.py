"""One batch over ranks and micro-batches of any sizes equals one device; wrong normalizers do not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from minitrain.data_parallel import (
    DataParallel,
    accumulation,
    naive,
    overlapped,
)
from minitrain.data_parallel.full.accumulation import (
    accumulate,
)
from minitrain.models.gpt import IGNORE
from tests.data_parallel.models import close, gpt, rungs, tokens


def ragged(samples, step=0):
    """Tokens of which each sample has another number of targets, one of them none."""
    inputs, targets = tokens(samples, step)
    for number, row in enumerate(targets):
        row[: number % 6] = IGNORE
    return inputs, targets


def loss_sum(module, pair):
    inputs, targets = pair
    logits, _ = module(inputs)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")


def count(pair):
    return int((pair[1] != IGNORE).sum())


def cut(pair, rank, ranks):
    """This rank's micro-batches: of one, two, … samples, and none for the last of three ranks."""
    shares = [part.tensor_split(ranks if ranks < 3 else ranks - 1) for part in pair]
    if rank >= len(shares[0]):
        return []
    inputs, targets = (share[rank] for share in shares)
    sizes = [1] * (len(inputs) - 2 * (len(inputs) // 3)) + [2] * (len(inputs) // 3)
    return list(zip(inputs.split(sizes), targets.split(sizes), strict=True))


def against_one_device(world, rung, seed):
    model, reference = rung(gpt(seed=0), bucket_megabytes=0.001), gpt(seed=0)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    for step in range(2):
        whole = ragged(7, seed + step)
        mean = accumulate(model, cut(whole, world.rank, world.size), loss_sum, count)
        expected = reference(*whole)[1]  # the mean over all targets
        expected.backward()
        torch.testing.assert_close(mean, expected.detach())
        close(model.module, reference)
        for each in optimizers:
            each.step()
            each.zero_grad()


@pytest.mark.parametrize("size", (2, 3))
@rungs
def test_micro_batches_of_different_sizes_equal_one_batch(ranks, rung, size):
    ranks(size).run(against_one_device, rung, 5)


def small_form(world, rung):
    """Three equal micro-batches, against one device."""
    model, reference = rung(gpt(seed=0)), gpt(seed=0)
    for step in range(2):  # the second must not remember the first
        whole = tokens(6 * world.size, step)
        mine = [part[6 * world.rank : 6 * world.rank + 6].split(2) for part in whole]
        pairs = list(zip(*mine, strict=True))
        mean = accumulation.accumulate(model, pairs, lambda module, pair: module(*pair)[1])
        expected = reference(*whole)[1]
        expected.backward()
        torch.testing.assert_close(mean, expected.detach(), rtol=1e-12, atol=1e-12)
        close(model.module, reference)
        for each in (model, reference):
            each.zero_grad()


@pytest.mark.parametrize("rung", (naive.NaiveDataParallel, overlapped.DataParallel))
def test_small_form_equals_one_batch(ranks, rung):
    ranks(3).run(small_form, rung)


def nothing_counted(world):
    model = DataParallel(gpt(seed=0))
    inputs, targets = tokens(1)
    for micro_batches in ([], [(inputs, torch.full_like(targets, IGNORE))]):
        with pytest.raises(ValueError, match="no rank counts a single loss"):
            accumulate(model, micro_batches, loss_sum, count)


def test_a_batch_without_targets_is_refused(ranks):
    ranks(2).run(nothing_counted)
