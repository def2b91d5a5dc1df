"""The gradients' norm against torch's on one device: what several ranks hold counts once."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minitrain.comm import Ledger
from minitrain.comm.clip_grad_norm import clip_grad_norm, gradient_norm
from minitrain.models import GPT, GPTConfig
from minitrain.tensor_parallel import clip_grad_norm as small
from minitrain.tensor_parallel.full.parallelize import parallelize, piece_of
from minitrain.tensor_parallel.full.parameter_layout import mark, sum_partial_gradients


def with_gradients(world, kv_heads=None):
    """A GPT on this device, the same cut over the ranks, and both's gradients."""
    config = GPTConfig(13, 5, 2, hidden=4 * world.size, heads=2 * world.size, kv_heads=kv_heads)
    reference = GPT(config, seed=0).double()
    model = copy.deepcopy(reference)
    parallelize(model)
    inputs, targets = torch.randint(13, (2, 3, 5), generator=torch.Generator().manual_seed(0))
    for each in (reference, model):
        each(inputs, targets)[1].backward()
    sum_partial_gradients(model)
    return reference, model


def like_torch(world, kv_heads, max_norm, clip=clip_grad_norm):
    reference, model = with_gradients(world, kv_heads)
    expected = nn.utils.clip_grad_norm_(reference.parameters(), max_norm)
    with Ledger() as ledger:
        norm = clip(model.parameters(), max_norm)
    assert [(entry.operation, entry.bytes) for entry in ledger.entries] == [("all_reduce", 8)]
    torch.testing.assert_close(norm, expected, rtol=1e-12, atol=0)
    for mine, its in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, piece_of(its.grad, mine), rtol=0, atol=1e-12)
    return norm.item()


@pytest.mark.parametrize("max_norm", (0.1, 1e9))
@pytest.mark.parametrize("size, kv_heads", ((1, None), (2, None), (3, 1), (4, 2)))
def test_equals_clip_grad_norm_on_one_device(ranks, size, kv_heads, max_norm):
    norms = ranks(size).run(like_torch, kv_heads, max_norm)
    assert len(set(norms)) == 1  # to the same bits: a rank that clipped otherwise would drift


@pytest.mark.parametrize("max_norm", (0.1, 1e9))
@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_the_small_one_equals_clip_grad_norm_on_one_device(ranks, size, max_norm):
    norms = ranks(size).run(like_torch, None, max_norm, small.clip_grad_norm)
    assert len(set(norms)) == 1


def small_like_full(world):
    """Both add the same squares, perhaps in another order: each of n additions rounds by at most 2⁻⁵³."""
    _, model = with_gradients(world)
    other = copy.deepcopy(model)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        its.grad = mine.grad.clone()
    norm, its_norm = small.clip_grad_norm(model.parameters(), 0.1), clip_grad_norm(other.parameters(), 0.1)
    bound = (len(list(model.parameters())) + world.size + 3) * 2**-52
    torch.testing.assert_close(norm, its_norm, rtol=bound, atol=0)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=bound, atol=0)


@pytest.mark.parametrize("size", (2, 3, 4))
def test_small_like_full(ranks, size):
    ranks(size).run(small_like_full)


def careless(world):
    reference, model = with_gradients(world)
    square = sum(parameter.grad.square().sum() for parameter in model.parameters())
    dist.all_reduce(square)
    return square.sqrt().item(), nn.utils.get_total_norm([p.grad for p in reference.parameters()]).item()


def test_break_it_counted_on_every_rank_the_norm_grows_with_the_ranks(ranks):
    for found, expected in ranks(3).run(careless):
        assert found > 1.01 * expected


def by_hand(world, gradient_norm, again):
    whole, cut, without = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    mark(cut, 0)
    whole.grad, cut.grad = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]) * (world.rank + 1)
    return gradient_norm([whole, cut, without, *([whole] if again else [])]).item()


def test_by_hand(ranks):
    # 1 + 4 once; 4 and 16 from the two pieces; a parameter that is listed twice counts once: √25.
    for form, again in ((gradient_norm, True), (small.gradient_norm, False)):
        assert ranks(2).run(by_hand, form, again) == pytest.approx([5.0, 5.0], rel=1e-15)


def huge(world):
    cut = nn.Parameter(torch.zeros(1))
    mark(cut, 0)
    cut.grad = torch.tensor([1e30])
    low = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    low.grad = torch.full((4,), 1e30, dtype=torch.bfloat16)
    norm = clip_grad_norm([cut, low], 1.0).item()
    return norm, cut.grad.item(), low.grad.dtype


def test_squares_of_large_gradients_do_not_overflow(ranks):
    for norm, clipped, dtype in ranks(2).run(huge):
        assert norm == pytest.approx(6**0.5 * 1e30, rel=0.01)  # bfloat16 has three digits
        assert clipped == pytest.approx(6**-0.5, rel=0.01)
        assert dtype == torch.bfloat16


def bad(world):
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    with Ledger() as ledger:
        for max_norm in (0.0, -1.0, float("nan")):
            with pytest.raises(ValueError, match=f"max_norm={max_norm} must be positive"):
                clip_grad_norm([parameter], max_norm)
        with pytest.raises(ValueError, match="parameters is empty"):
            gradient_norm([])
    return ledger.entries


def test_bad_input_is_refused_before_anything_is_sent(ranks):
    assert ranks(2).run(bad) == [[], []]
