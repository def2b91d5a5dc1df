"""What the small form of the layers is tested with: one device's pair of layers, and the full form's."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.comm.mesh import axes
from minitrain.comm.messages import all_reduce, rank_and_size
from minitrain.sequence_parallel import linear
from minitrain.sequence_parallel.full.linear import ColumnFromSequence, RowToSequence
from minitrain.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from minitrain.tensor_parallel.clip_grad_norm import gradient_norm
from minitrain.tensor_parallel.full.parameter_layout import sum_partial_gradients

BATCH, SHARD, WIDTH = 3, 5, 7
DIMS = (0, 0, 1, None)  # along which weight and bias of the column, and weight and bias of the row are divided


def pair(ranks: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 3 * ranks), nn.GELU(), nn.Linear(3 * ranks, WIDTH)).double()


def small_pair(group=None) -> nn.Sequential:
    torch.manual_seed(0)  # each rank draws one device's weights, and keeps its part
    inner = 3 * rank_and_size(group)[1]
    column, row = linear.ColumnFromSequence(WIDTH, inner, group=group), linear.RowToSequence(inner, WIDTH, group=group)
    return nn.Sequential(column, nn.GELU(), row).double()


def full_pair(whole: nn.Sequential) -> nn.Sequential:
    column = ColumnFromSequence.of(ColumnParallelLinear.from_linear(whole[0]))
    return nn.Sequential(column, nn.GELU(), RowToSequence.of(RowParallelLinear.from_linear(whole[2])))


def drawn(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, grad_y = torch.randn(2, batch, seq, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x.requires_grad_(), grad_y


def part(whole: torch.Tensor, dim: int | None, group=None) -> torch.Tensor:
    rank, ranks = rank_and_size(group)
    return whole if dim is None else whole.chunk(ranks, dim)[rank]


def like_one_device(world, group=None):
    """Outputs, gradients and their norm, of two micro-batches."""
    _, ranks = rank_and_size(group)
    alone, model = pair(ranks), small_pair(group)

    def close(found, expected):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)

    for batch in (BATCH, 1):
        x, grad_y = drawn(batch, SHARD * ranks)
        mine = part(x.detach(), 1, group).requires_grad_()
        y, expected = model(mine), alone(x)
        y.backward(part(grad_y, 1, group))
        expected.backward(grad_y)
        close(y, part(expected, 1, group))
        close(mine.grad, part(x.grad, 1, group))
    squares = torch.zeros((), dtype=torch.float64)
    for parameter, its, dim in zip(model.parameters(), alone.parameters(), DIMS, strict=True):
        close(parameter.grad, part(its.grad, dim, group))
        squares += parameter.grad.square().sum() / (ranks if dim is None else 1)  # every rank has all of it
    norm = nn.utils.clip_grad_norm_(alone.parameters(), float("inf"))
    torch.testing.assert_close(all_reduce(squares, group).wait().sqrt(), norm, rtol=1e-12, atol=0)
    # Clipping knows what is divided, as in tensor parallelism.
    torch.testing.assert_close(gradient_norm(model.parameters(), group), norm, rtol=1e-12, atol=0)


def in_a_group(world):
    like_one_device(world, axes(dp=2, tp=2)["tp"].get_group())


def like_full_form(world):
    """What differs from the full form: nothing with one sequence, but the row's bias, whose sum has another order."""
    model, full = small_pair(), full_pair(pair(world.size))
    x, grad_y = drawn(1, SHARD * world.size)
    mine, its = (part(x.detach(), 1).clone().requires_grad_() for _ in range(2))
    y, expected = model(mine), full(its)
    for each in (y, expected):
        each.backward(part(grad_y, 1))
    sum_partial_gradients(full)
    assert torch.equal(y, expected) and torch.equal(mine.grad, its.grad)
    *found, bias = (parameter.grad for parameter in model.parameters())
    *theirs, other = (parameter.grad for parameter in full.parameters())
    assert all(map(torch.equal, found, theirs))
    # Sums of k terms in two orders differ by at most 2(k−1)u of the sum of their sizes (Higham 2002, §4.2).
    bound = 2 * (grad_y.shape[1] - 1) * torch.finfo(torch.float64).eps / 2 * grad_y.abs().sum((0, 1))
    assert ((bias - other).abs() <= bound).all()
