"""The claims on the small form in the demo of `linear`: payloads, bytes kept, and the results of one device.

The small form uses torch's own collectives, of which a ledger sees calls and payloads.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, SavedActivations, World
from minitrain.lessons import Claim
from minitrain.lessons.sequence_parallel.common import PAPER, own
from minitrain.lessons.tensor_parallel.common import distance
from minitrain.sequence_parallel import linear


def two_layers(world: World, batch: int, shard: int, width: int) -> tuple[list[Claim], Claim, Claim]:
    """Claims on a column-parallel layer, GELU and a row-parallel one: sent; kept; and the results of one device."""
    hidden, seq = width * world.size, shard * world.size
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))
    torch.manual_seed(0)  # each rank draws the same weights, and keeps its part
    column, row = linear.ColumnFromSequence(hidden, 4 * hidden), linear.RowToSequence(4 * hidden, hidden)
    model = nn.Sequential(column, nn.GELU(), row).to(world.device)
    generator = torch.Generator().manual_seed(1)
    x, grad_y = torch.randn(2, batch, seq, hidden, generator=generator, dtype=torch.float64).to(world.device)

    mine = own(world, x).float().requires_grad_()
    with Ledger() as forward, SavedActivations(model) as saved:
        y = model(mine)
    with Ledger() as backward:
        y.backward(own(world, grad_y).float())
    size, wide = 4 * batch * seq * hidden, 4 * hidden // world.size
    kept = 4 * batch * seq * (hidden // world.size + 2 * wide)

    double, alone = copy.deepcopy(model).double(), alone.to(world.device).double()
    found = _results(double, own(world, x), own(world, grad_y))
    whole_y, whole_grad_x, *gradients = _results(alone, x, grad_y)
    dims = (0, 0, 1, None)  # along which W and b of the column, and W and b of the row are divided
    pairs = zip(gradients, dims, strict=True)
    pieces = [g if dim is None else g.tensor_split(world.size, dim)[world.rank] for g, dim in pairs]
    apart = distance(found, [own(world, whole_y), own(world, whole_grad_x), *pieces])
    sent = [
        Claim("small form: payload forward, S = 4bsh", "2S", 2 * size, _payload(forward), "B", PAPER, key=True),
        Claim("small form: payload backward", "3S", 3 * size, _payload(backward), "B", PAPER, key=True),
    ]
    near = Claim("", "10⁻¹²", 1e-12, apart, "1", PAPER, "compared", "<=")
    return sent, Claim("", "4bs(h/t + 4h/t + 4h/t)", kept, saved.bytes, "B", PAPER), near


def _payload(ledger: Ledger) -> int:
    return sum(entry.bytes for entry in ledger.entries)


def _results(model: nn.Module, x: Tensor, grad_y: Tensor) -> list[Any]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    y.backward(grad_y)
    return [y.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]
