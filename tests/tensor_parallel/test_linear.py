"""Both layers against `nn.Linear` on one device; what they keep, and what they refuse."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minitrain.comm import Ledger
from minitrain.comm.comm import Comm
from minitrain.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from minitrain.tensor_parallel import linear as small
from minitrain.tensor_parallel.full.parallelize import piece_of
from minitrain.tensor_parallel.full.parameter_layout import copies, is_partial, sharded_dim, sum_partial_gradients
from tests.tensor_parallel.under_way import UnderWay

SMALL = small.ColumnParallelLinear, small.RowParallelLinear


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


def drawn_alike(world):
    """The constructor draws what nn.Linear draws, and keeps its piece."""
    for kind in (*SMALL, ColumnParallelLinear, RowParallelLinear):
        torch.manual_seed(0)
        reference = nn.Linear(6, 12)
        torch.manual_seed(0)
        parallel = kind(6, 12)
        close(parallel, reference, 0)
        assert parallel.weight.untyped_storage().nbytes() == parallel.weight.nbytes  # no view of the whole matrix


def test_initial_weights_are_those_of_one_device(ranks):
    ranks(3).run(drawn_alike)


def kept(world):
    """How parameters lie is still known after copying, casting, making them on a device, and loading."""
    column = ColumnParallelLinear(4, 4)
    with torch.device("meta"):
        row = RowParallelLinear(4, 4)
    loaded = copy.deepcopy(column)
    loaded.load_state_dict({name: value.clone() for name, value in column.state_dict().items()}, assign=True)
    for layer in (column, copy.deepcopy(column), column.double(), loaded):
        assert (sharded_dim(layer.weight), sharded_dim(layer.bias)) == (0, 0)
    for layer in (row, copy.deepcopy(row), row.to_empty(device="cpu")):
        assert (sharded_dim(layer.weight), sharded_dim(layer.bias)) == (1, None)
    return copies(row.weight, world.size), copies(row.bias, world.size)


def test_how_parameters_lie_is_kept(ranks):
    assert ranks(2).run(kept) == [(1, 2)] * 2


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


def shared(world):
    """Two pieces over four ranks: each rank uses its copy for something else, and the gradients are added."""
    reference = linear(3, 4)
    layer = ColumnParallelLinear.from_linear(reference, shards=2)
    x = drawn(5, 3)
    y = layer(x)
    half = world.rank // 2
    torch.testing.assert_close(y, reference(x)[:, 2 * half : 2 * half + 2])
    (y * (1 + world.rank)).sum().backward()
    alone = layer.weight.grad.clone()
    sum_partial_gradients(layer)
    weights = torch.tensor([1.0 + 2.0] * 2 + [3.0 + 4.0] * 2, dtype=torch.float64)  # of ranks 0 and 1, of 2 and 3
    (reference(x) * weights).sum().backward()
    close(layer, reference, 1e-12)
    assert is_partial(layer.weight) and copies(layer.weight, world.size) == 2
    return torch.allclose(alone, layer.weight.grad)


def test_fewer_pieces_than_ranks(ranks):
    assert ranks(4).run(shared) == [False] * 4, "a gradient was whole before it was added up"


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
