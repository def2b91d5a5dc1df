"""Both layers with frozen weights, what is under way, and what they refuse; the lesson has the rest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minitrain.comm import Ledger
from minitrain.comm.comm import Comm
from minitrain.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from minitrain.tensor_parallel.full.parallelize import piece_of
from tests.tensor_parallel.under_way import UnderWay


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def linear(inputs, outputs, bias=True, dtype=torch.float64):
    made = nn.Linear(inputs, outputs, bias, dtype=dtype)
    with torch.no_grad():
        for seed, parameter in enumerate(made.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=seed))
    return made


class Pair(nn.Module):
    """Column, GELU, row, as in an MLP; or each by itself with whole inputs and outputs."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.second(F.gelu(self.first(x)))


def close(parallel, reference, tolerance, group=None):
    """Weights and gradients of this rank's pieces, compared as in `near`."""
    for (name, mine), whole in zip(parallel.named_parameters(), reference.parameters(), strict=True):
        near(mine.detach(), piece_of(whole, mine, group), tolerance, whole, name)
        assert (mine.grad is None) == (whole.grad is None), name
        if mine.grad is not None:
            near(mine.grad, piece_of(whole.grad, mine, group), tolerance, whole.grad, name)


def near(found, expected, tolerance, whole, name="result"):
    """Within `tolerance` of the largest element of `whole`, of which `expected` is a piece; of 1, if that is larger.

    Small elements of a gradient are differences of large ones: how many of their digits are right depends on the order
    of additions, and that on the processor.
    """
    bound = tolerance * max(1.0, whole.detach().abs().max().item())
    torch.testing.assert_close(found, expected, rtol=0, atol=bound, msg=lambda message: f"{name}: {message}")


def frozen_weights_and_inference(world):
    """Weights that are not trained get no gradient; an input that needs none is not summed."""
    reference = Pair(linear(5, 6), linear(6, 3))
    reference.first.weight.requires_grad_(False)
    reference.second.bias.requires_grad_(False)
    parallel = Pair(ColumnParallelLinear.from_linear(reference.first), RowParallelLinear.from_linear(reference.second))
    with Ledger() as ledger:
        y = parallel(drawn(2, 5))
        forward = ledger.calls("all_reduce")
        y.sum().backward()
    assert (forward, ledger.calls("all_reduce")) == (1, 1)
    reference(drawn(2, 5)).sum().backward()
    close(parallel, reference, 1e-12)
    with torch.no_grad():
        assert not parallel(drawn(2, 5)).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(parallel(drawn(2, 5)), y.detach())


def under_way(world):
    """The products of weights that take x are computed while dX travels."""
    watch = UnderWay()
    layers = [ColumnParallelLinear.from_linear(linear(4, 6), Comm(collectives=watch)) for _ in range(3)]
    counts = []
    for first, *others in (layers[:1], layers):
        before = watch.products["all_reduce"]
        x = drawn(5, 4).requires_grad_()
        with watch:
            ys = first.together(x, *others)
            sum(y.sum() for y in ys).backward()
        counts.append(watch.products["all_reduce"] - before)
    return counts


def test_weights_get_their_gradients_while_dx_is_under_way(ranks):
    """A layer alone, and three that take the same input, as query, key and value do."""
    assert ranks(2).run(under_way) == [[1, 3]] * 2


def bad_input_is_named_on_every_rank(world):
    reference = linear(5, 7)
    with pytest.raises(ValueError, match="out_features=7 cannot be split over 2 tensor-parallel ranks; use a multiple"):
        ColumnParallelLinear.from_linear(reference)
    with pytest.raises(ValueError, match=r"shards=3 must divide 2 tensor-parallel ranks; use one of \[1, 2\]"):
        ColumnParallelLinear(4, 6, shards=3)
    other = linear(4, 6)
    layer = ColumnParallelLinear.from_linear(other)
    with pytest.raises(
        ValueError, match="ColumnParallelLinear: `x` must be equal on all tensor-parallel ranks .*dropout masks"
    ):
        layer(drawn(2, 4, seed=world.rank))
    with torch.no_grad():
        other.weight += world.rank
    with pytest.raises(ValueError, match=r"RowParallelLinear.from_linear: `linear.weight` must be equal"):
        RowParallelLinear.from_linear(other)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        x = drawn(2, 4).requires_grad_()
        (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        (first * x).sum().backward()


@pytest.mark.parametrize("case", (frozen_weights_and_inference, bad_input_is_named_on_every_rank))
def test_on_two_ranks(ranks, case):
    ranks(2).run(case)
