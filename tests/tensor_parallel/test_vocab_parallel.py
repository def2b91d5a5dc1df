"""Embedding, head and loss over parts of the vocabulary, against one device and F.cross_entropy."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import TypeCheckError
from torch import nn

from minitrain.comm import Ledger
from minitrain.comm.comm import Comm
from minitrain.tensor_parallel import cross_entropy
from minitrain.tensor_parallel.full.parallelize import piece_of
from minitrain.tensor_parallel.full.parameter_layout import sharded_dim
from minitrain.tensor_parallel.full.vocab_parallel import (
    VocabParallelEmbedding,
    VocabParallelHead,
    gather_logits,
    vocab_parallel_cross_entropy,
)

INF = math.inf
FORMS = {"small": cross_entropy.vocab_parallel_cross_entropy, "full": vocab_parallel_cross_entropy}
HIDDEN = 3
sizes = pytest.mark.parametrize("size", (1, 2, 3, 4))
# One that divides; one that leaves a rank with padding only (5 tokens on 4 ranks: 2 + 2 + 1 + 0); fewer than ranks.
vocabularies = pytest.mark.parametrize("vocabulary", (12, 5, 1))


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def part(world, logits):
    """This rank's columns, −∞ where it has padding."""
    padded = F.pad(logits.detach(), (0, -logits.shape[-1] % world.size), value=-INF)
    return padded.chunk(world.size, -1)[world.rank].clone().requires_grad_()


def tied(world, vocabulary, bias):
    """Embedding, head and loss of one device, and the same cut; two steps with momentum and decay."""
    torch.manual_seed(0)
    whole = nn.Embedding(vocabulary, HIDDEN, dtype=torch.float64)
    linear = nn.Linear(HIDDEN, vocabulary, bias, dtype=torch.float64)
    linear.weight = whole.weight
    table = VocabParallelEmbedding.from_embedding(whole)
    head = VocabParallelHead.from_linear(linear, shard=table.weight)
    assert head.weight is table.weight and sharded_dim(table.weight) == 0
    ours, theirs = (torch.optim.SGD(m.parameters(), 0.1, 0.9, weight_decay=0.1) for m in (head, linear))
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        inputs, targets = torch.randint(vocabulary, (2, 2, 7), generator=generator)
        ours.zero_grad(), theirs.zero_grad()
        if step == 0:
            assert torch.equal(table(inputs), whole(inputs))  # x + 0 is exact
        logits = head(torch.tanh(table(inputs)))
        loss = vocab_parallel_cross_entropy(logits, targets, vocabulary=vocabulary)
        expected = linear(torch.tanh(whole(inputs)))
        torch.testing.assert_close(gather_logits(logits, vocabulary), expected, rtol=0, atol=1e-12)
        reference = F.cross_entropy(expected.flatten(0, 1), targets.flatten())
        torch.testing.assert_close(loss, reference, rtol=0, atol=1e-12)
        loss.backward(), reference.backward()
        for mine, its in zip(head.parameters(), linear.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, piece_of(its.grad, mine), rtol=0, atol=1e-12)
            assert not mine.grad[table.rows.real :].any()
        ours.step(), theirs.step()
        for mine, its in zip(head.parameters(), linear.parameters(), strict=True):
            torch.testing.assert_close(mine, nn.Parameter(piece_of(its, mine)), rtol=0, atol=1e-12)
            assert not mine[table.rows.real :].any()  # padding stays 0 under weight decay


@pytest.mark.parametrize("bias", (False, True))
@vocabularies
@sizes
def test_a_tied_embedding_and_head_equal_one_device(ranks, size, vocabulary, bias):
    ranks(size).run(tied, vocabulary, bias)


def like_torch(world, form, rows, targets):
    """Loss and gradient; a gradient that is not 1 comes in."""
    logits, targets = torch.tensor(rows, dtype=torch.float64), torch.tensor(targets)
    mine, whole = part(world, logits), logits.clone().requires_grad_()
    options = {"vocabulary": logits.shape[-1]} if form == "full" else {}
    loss, expected = FORMS[form](mine, targets, **options), F.cross_entropy(whole, targets)
    (2 * loss).backward(), (2 * expected).backward()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    gradient = F.pad(whole.grad, (0, -len(rows[0]) % world.size)).chunk(world.size, -1)[world.rank]
    torch.testing.assert_close(mine.grad.nan_to_num(7.0), gradient.nan_to_num(7.0), rtol=0, atol=1e-12)


SPECIAL = {
    "some ignored": ([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0], [1.0, 1.0, 1.0]], [2, -100, 0]),
    "huge": ([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4 + 1], [1e4, 1e4, 1e4]], [1, 2, 0]),
    "far too large to add": ([[1e300, -1e300, 0.0]], [0]),
    "a token that cannot come": ([[-INF, 0.0, 1.0], [0.0, 1.0, -INF]], [1, 0]),
    "and is the target": ([[-INF, 0.0, 1.0]], [0]),
    "one column": ([[-INF, -INF, 5.0]], [2]),
}
CASES = [(form, case) for form in FORMS for case in SPECIAL if (form, case) != ("small", "some ignored")]


@pytest.mark.parametrize(("form", "case"), CASES)
@pytest.mark.parametrize("size", (1, 2, 4))
def test_special_logits_give_what_torch_gives(ranks, size, form, case):
    ranks(size).run(like_torch, form, *SPECIAL[case])


def not_a_number(world, form, rows, targets):
    mine = part(world, torch.tensor(rows, dtype=torch.float64))
    loss = FORMS[form](mine, torch.tensor(targets))
    loss.backward()
    return loss.item(), mine.grad.tolist()


NANS = {
    "infinite": [[INF, 0.0, 1.0]],
    "not a number": [[0.0, 1.0, math.nan]],
    "nothing can come": [[-INF] * 3],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", NANS)
def test_where_torch_says_not_a_number_so_do_all_ranks(ranks, case, form):
    whole = torch.tensor(NANS[case], dtype=torch.float64)
    assert F.cross_entropy(whole, torch.tensor([1])).isnan()
    assert all(math.isnan(loss) for loss, _ in ranks(3).run(not_a_number, form, NANS[case], [1]))


def test_all_ignored_is_not_a_number_and_has_gradient_0(ranks):
    for loss, gradient in ranks(3).run(not_a_number, "full", [[0.0, 1.0, 2.0]], [-100]):
        assert math.isnan(loss)
        assert gradient == [[0.0]]


def low_precision(world, dtype):
    logits, targets = (30 * random(6, 10)).to(dtype), torch.arange(6)
    mine, whole = part(world, logits), logits.clone().requires_grad_()
    loss = vocab_parallel_cross_entropy(mine, targets, vocabulary=10)
    expected = F.cross_entropy(whole.float(), targets)
    loss.backward(), expected.backward()
    assert loss.dtype == torch.float32 and mine.grad.dtype == dtype
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    gradient = F.pad(whole.grad, (0, -10 % world.size)).chunk(world.size, -1)[world.rank]
    torch.testing.assert_close(mine.grad, gradient, rtol=torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_low_precision_is_computed_in_float32(ranks, dtype):
    ranks(3).run(low_precision, dtype)


def bad_input_is_refused_before_anything_is_sent(world):
    """Each is refused on every rank."""
    rank, one, two = world.rank, torch.zeros(1, 3), torch.zeros(2, 3)
    loss = vocab_parallel_cross_entropy
    other = torch.zeros(1, 3, dtype=(torch.float32, torch.float64)[rank])
    wide = nn.Parameter(torch.zeros(5, HIDDEN))
    embed, head = VocabParallelEmbedding, VocabParallelHead
    for error, message, call in (
        (IndexError, r"`targets` has 5, .* use 0 to 4, or -100", lambda: loss(one, torch.tensor([5]), vocabulary=5)),
        (ValueError, r"`targets` must be equal on all tensor-parallel ranks", lambda: loss(one, torch.tensor([rank]))),
        # In tests the signature is checked before.
        ((ValueError, TypeCheckError), r"targets", lambda: loss(two, torch.tensor([0]))),
        (ValueError, r"dtype of `tensor` differs between ranks", lambda: loss(other, torch.tensor([0]))),
        # 5 would be padding on the last rank.
        (IndexError, r"`tokens` has 5, .* use 0 to 4", lambda: embed(5, HIDDEN, Comm(check=True))(torch.tensor([5]))),
        (ValueError, r"`tokens` must be equal on all", lambda: embed(5, HIDDEN)(torch.tensor([rank]))),
        (ValueError, r"padding_idx=0 is not", lambda: embed.from_embedding(nn.Embedding(5, HIDDEN, padding_idx=0))),
        (ValueError, r"shard of shape \(5, 3\) does not", lambda: head.from_linear(nn.Linear(HIDDEN, 5), shard=wide)),
    ):
        torch.manual_seed(0)
        with Ledger() as ledger, pytest.raises(error, match=message):
            call()
        assert not ledger.entries


def test_bad_input(ranks):
    ranks(2).run(bad_input_is_refused_before_anything_is_sent)
