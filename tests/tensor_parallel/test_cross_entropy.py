"""The small form of the loss against F.cross_entropy on one device and against the full form, padding among it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from minitrain.comm import Ledger, SavedActivations
from minitrain.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from minitrain.tensor_parallel.full import cross_entropy as full
from tests.tensor_parallel.test_vocab_parallel import NANS, SPECIAL, part, random, sizes, vocabularies


def like_one_device(world, vocabulary):
    """Loss, gradient and its norm; and the full form's bits, because both add in the same order."""
    logits, targets = random(2, 7, vocabulary), torch.arange(14).view(2, 7) % vocabulary
    mine, other, whole = part(world, logits), part(world, logits), logits.clone().requires_grad_()
    loss = vocab_parallel_cross_entropy(mine, targets)
    its = full.vocab_parallel_cross_entropy(other, targets, vocabulary=vocabulary)
    expected = F.cross_entropy(whole.flatten(0, 1), targets.flatten())
    for each in (loss, its, expected):
        (3 * each).backward()  # a gradient that is not 1 comes in
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    gradient = F.pad(whole.grad, (0, -vocabulary % world.size)).chunk(world.size, -1)[world.rank]
    torch.testing.assert_close(mine.grad, gradient, rtol=0, atol=1e-12)
    square = mine.grad.square().sum()
    torch.distributed.all_reduce(square)
    torch.testing.assert_close(square.sqrt(), whole.grad.norm(), rtol=1e-12, atol=1e-12)
    assert torch.equal(loss, its) and torch.equal(mine.grad, other.grad)


@vocabularies
@sizes
def test_like_one_device_and_like_the_full_form(ranks, size, vocabulary):
    ranks(size).run(like_one_device, vocabulary)


def special(world, case):
    rows, targets = SPECIAL[case]
    logits = torch.tensor(rows, dtype=torch.float64)
    mine, whole = part(world, logits), logits.clone().requires_grad_()
    loss = vocab_parallel_cross_entropy(mine, torch.tensor(targets))
    expected = F.cross_entropy(whole, torch.tensor(targets))
    loss.backward(), expected.backward()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    gradient = F.pad(whole.grad, (0, -len(rows[0]) % world.size)).chunk(world.size, -1)[world.rank]
    torch.testing.assert_close(mine.grad, gradient, rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("case", [case for case in SPECIAL if case != "some ignored"])
@pytest.mark.parametrize("size", (1, 2, 4))
def test_special_logits_give_what_torch_gives(ranks, size, case):
    ranks(size).run(special, case)


def not_a_number(world, case):
    rows = torch.tensor(NANS[case], dtype=torch.float64)
    return vocab_parallel_cross_entropy(part(world, rows), torch.tensor([1])).item()


@pytest.mark.parametrize("case", NANS)
def test_where_torch_says_not_a_number_so_do_all_ranks(ranks, case):
    assert all(math.isnan(loss) for loss in ranks(3).run(not_a_number, case))


def counted(world):
    mine, targets = part(world, random(5, 22).float()), torch.zeros(5, dtype=torch.int64)
    with Ledger() as forward, SavedActivations() as saved:
        loss = vocab_parallel_cross_entropy(mine, targets)
    with Ledger() as backward:
        loss.backward()
    # Three numbers of 4 bytes for each of 5 tokens, from each rank.
    assert [(entry.operation, entry.bytes) for entry in forward.entries] == [("all_gather", 3 * 4 * 5 * world.size)]
    assert backward.entries == []
    # Kept: the logits as they are; of each token m and s (4 bytes), its place (8), and whether it is here.
    assert saved.bytes == mine.nbytes + 5 * (4 + 4 + 8 + 1)


@sizes
def test_three_numbers_a_token_forward_and_nothing_backward(ranks, size):
    ranks(size).run(counted)


def low_precision(world):
    with pytest.raises(AssertionError, match="a sum needs more digits"):
        vocab_parallel_cross_entropy(torch.zeros(1, 3, dtype=torch.bfloat16), torch.tensor([0]))


def test_low_precision_is_left_to_the_full_form(ranks):
    ranks(2).run(low_precision)
