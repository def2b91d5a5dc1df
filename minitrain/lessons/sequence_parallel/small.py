"""What the demos of `mappings` and `linear` claim for the small forms: payloads, bytes kept, and equal results.

The small forms use torch's own collectives, of which a ledger sees calls and payloads.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, SavedActivations, World
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.lessons import Claim
from minitrain.lessons.sequence_parallel.common import PAPER, own
from minitrain.lessons.tensor_parallel.common import different, distance
from minitrain.sequence_parallel import linear, mappings
from minitrain.sequence_parallel.full import mappings as full


def operators(world: World, batch: int, shard: int, width: int) -> list[Claim]:
    """Payloads of g and ḡ, how far each is from having its transpose, and the full form's bits.

    ⟨Ax, y⟩ = ⟨x, Aᵀy⟩, as for the full forms in `common.operators`; whole numbers make both sides exact.
    """
    seq = shard * world.size
    payload, claims, unlike = 4 * batch * seq * width, [], 0
    for name, operator, theirs, lengths, verbs in (
        ("g", mappings.g, full.g, (shard, seq), ("all_gather", "reduce_scatter")),
        ("ḡ", mappings.g_bar, full.g_bar, (seq, shard), ("reduce_scatter", "all_gather")),
    ):
        generator = torch.Generator().manual_seed(world.rank)
        x, y = (
            torch.randint(-8, 9, (batch, length, width), generator=generator).to(world.device, torch.float32)
            for length in lengths
        )
        other = x.clone().requires_grad_()
        x.requires_grad_()
        with Ledger() as forward:
            image = operator(x)
        with Ledger() as backward:
            image.backward(y)
        expected = theirs(other, Comm(check=False))
        expected.backward(y)
        assert x.grad is not None and other.grad is not None
        unlike += different([image, x.grad], [expected, other.grad])
        for way, ledger, verb in zip(("forward", "backward"), (forward, backward), verbs, strict=True):
            what = f"small form: {name}: payload of the one {verb.replace('_', '-')} {way}"
            measured = ledger.payload(verb) if len(ledger.entries) == 1 else -1
            claims.append(Claim(what, "S = bsh·w", payload, measured, "B", PAPER, key=way == "forward"))
        there, back = ((image.detach() * y).sum().item(), (x.detach() * x.grad).sum().item())
        apart = sum(gather_objects(there)) - sum(gather_objects(back))
        claims.append(Claim(f"small form: {name}: ⟨Ax, y⟩ − ⟨x, Aᵀy⟩", "0", 0, apart, "1", PAPER, "compared", key=True))
    what = "small form: elements of outputs and gradients that differ from the full form's"
    return [*claims, Claim(what, "0", 0, unlike, how="compared", key=True)]


def two_layers(world: World, batch: int, shard: int, width: int) -> list[Claim]:
    """Claims on a column-parallel layer, GELU and a row-parallel one: sent, kept, and the results of one device."""
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
    what = "small form: Y, dX and all gradients against one device, float64"
    return [
        Claim("small form: payload forward, S = 4bsh", "2S", 2 * size, _payload(forward), "B", PAPER, key=True),
        Claim("small form: payload backward", "3S", 3 * size, _payload(backward), "B", PAPER, key=True),
        Claim("small form: bytes kept for backward", "4bs(h/n + 4h/n + 4h/n)", kept, saved.bytes, "B", PAPER, key=True),
        Claim(what, "0", 0, apart, "1", PAPER, "compared", absolute=1e-12, key=True),
    ]


def _payload(ledger: Ledger) -> int:
    return sum(entry.bytes for entry in ledger.entries)


def _results(model: nn.Module, x: Tensor, grad_y: Tensor) -> list[Any]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    y.backward(grad_y)
    return [y.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]
