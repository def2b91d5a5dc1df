"""Two layers with a GELU between them, between sequence shards: bytes sent and kept, and one device's results.

The small form uses torch's own collectives, of which a ledger sees calls and payloads.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from minitrain.comm import SavedActivations, World
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.lessons.sequence_parallel.common import OURS, PAPER, own
from minitrain.lessons.tensor_parallel.common import pieces, run_module
from minitrain.sequence_parallel import linear as small
from minitrain.sequence_parallel.full import linear as full
from minitrain.tensor_parallel.full.linear import ColumnParallelLinear
from minitrain.tensor_parallel.full.parameter_layout import sum_partial_gradients


def demo(world: World) -> list[Claim]:
    """Runs the two layers one after the other; the table shows bytes sent and kept, and one device's results."""
    rows, batch, seq, hidden = Rows(PAPER), 2, 4 * world.size, 8 * world.size
    torch.manual_seed(0)
    up, gelu, down = nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
    torch.manual_seed(0)  # each rank draws the same weights, and keeps its part
    column, row = small.ColumnFromSequence(hidden, 4 * hidden), small.RowToSequence(4 * hidden, hidden)
    models = {"small form": nn.Sequential(column, gelu, row).to(world.device)}
    for way, keep in OURS.items():
        first = full.ColumnFromSequence.of(ColumnParallelLinear.from_linear(up.to(world.device)), keep)
        models[way] = nn.Sequential(first, gelu, full.RowToSequence.from_linear(down.to(world.device)))

    x, grad_y = torch.randn(2, batch, seq, hidden, generator=torch.Generator().manual_seed(1)).to(world.device)
    mine, its_grad_y = own(world, x), own(world, grad_y)
    size, wide = 4 * batch * seq * hidden, 4 * hidden // world.size
    for case in ("small form", "gathered again"):
        model = copy.deepcopy(models[case])
        with SavedActivations(model) as saved:
            found = run_module(model, mine, its_grad_y)
        what, kept = "gathered again, small and full form: bytes kept for backward", hidden // world.size + 2 * wide
        rows.add(what, "4bs(h/t + 4h/t + 4h/t)", 4 * batch * seq * kept, saved.bytes, case=case)
        if case == "small form":
            sent = (sum(entry.bytes for entry in ledger.entries) for ledger in (found.forward, found.backward))
            rows.add("small form: payload forward, S = 4bsh", "2S", 2 * size, next(sent))
            rows.add("small form: payload backward", "3S", 3 * size, next(sent))

    one_device = nn.Sequential(up, gelu, down).double()
    y, grad_x, *gradients = run_module(one_device, x.double(), grad_y.double()).results
    for case, model in models.items():
        output, its_grad_x, *_ = run_module(model.double(), mine.double(), its_grad_y.double()).results
        sum_partial_gradients(model)
        ours = [output, its_grad_x, *(p.grad for p in model.parameters() if p.grad is not None)]
        theirs = [own(world, y), own(world, grad_x), *pieces(gradients, model)]
        what = "Y, dX and all gradients against one device, both forms and ways, float64"
        rows.near(what, ours, theirs, 1e-12, "10⁻¹²", ROUNDING, case)
    return rows.claims()
