"""The full forms of optimizers: the small forms' steps to the bit, stacks of matrices, 16 bits, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.optimizers import LAMB, LARS, Adafactor, Muon, lamb, lars
from minitrain.optimizers.full.adafactor import squares
from minitrain.tensor_parallel import ColumnParallelLinear
from minitrain.zero.full.partition import Piece
from minitrain.zero.full.stage1 import Zero1
from tests.second_device.any_order import AnyOrder

FULL = {
    "lamb": (LAMB, {"lr": 0.05, "weight_decay": 0.1, "phi": (0.9, 1.1)}),
    "lars": (LARS, {"lr": 0.5, "weight_decay": 0.01}),
}
SMALL = {"lamb": lamb.LAMB, "lars": lars.LARS}


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def losses(model, rank=0, ranks=1, steps=4):
    """The losses of this rank's part of each step's batch."""
    for step in range(steps):
        x = torch.randn(12, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        yield model(x.chunk(ranks)[rank]).square().mean()


@pytest.mark.parametrize(("start", "stop"), [(0, 600), (130, 430), (205, 206)])
def test_adafactor_s_sums_over_a_stack_of_matrices(start, stop):
    """Also of a piece; and to the bit on a GPU, where every rank of plain data parallelism makes them by itself."""
    shape, gradient = torch.Size((3, 40, 5)), torch.rand(600)
    part = torch.zeros(600)
    part[start:stop] = gradient[start:stop]
    piece = Piece("w", shape, 0, start, slice(0, stop - start))
    rows, columns = squares(gradient[start:stop], piece)
    torch.testing.assert_close(rows.view(3, 40), part.view(shape).square().sum(2))
    torch.testing.assert_close(columns.view(3, 5), part.view(shape).square().sum(1))
    with AnyOrder():
        assert squares(gradient[start:stop], piece)[1].equal(columns)


@pytest.mark.parametrize("name", FULL)
def test_the_small_form_s_steps_to_the_bit(name):
    kind, options = FULL[name]
    one, other = small_model(), small_model()
    full, small = kind(one.parameters(), **options), SMALL[name](other.parameters(), **options)
    for a, b in zip(losses(one), losses(other), strict=True):
        for model, loss, optimizer in ((one, a, full), (other, b, small)):
            model.zero_grad()
            loss.backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", FULL)
def test_norms_of_16_bits_do_not_overflow(name):
    """300² is more than float16 holds, and so is the sum of 1,024 squares of 20."""
    kind, options = FULL[name]
    exact, low = (nn.Parameter(torch.full((32, 32), 20.0).to(dtype)) for dtype in (torch.float32, torch.float16))
    for each in (exact, low):
        each.grad = torch.ones_like(each)
        kind([each], **options).step()
    torch.testing.assert_close(low.float(), exact, rtol=1e-3, atol=0)


def over_tensor_parallel(world):
    layer = ColumnParallelLinear.from_linear(nn.Linear(4, 4))
    for kind in (LAMB, LARS, Adafactor, Muon):
        with pytest.raises(
            ValueError, match=rf"{kind.__name__} needs whole layers, .* of shape \(2, 4\) is a piece of"
        ):
            kind([layer.weight], lr=0.1)
    with pytest.raises(ValueError, match="LAMB needs whole layers"):
        Zero1(layer, LAMB, lr=0.1)
    Muon([{"params": list(layer.parameters()), "use_muon": False}], lr=0.1)  # steps them as AdamW


def test_pieces_of_tensor_parallel_layers_are_refused(ranks):
    ranks(2).run(over_tensor_parallel)
