"""What a layer of each kind sends and holds, and that it computes what one device does.

Inputs and weights are whole numbers, so that sums are exact in any order and results have one device's bits. In other
numbers the last bits may differ, because t ranks add the products of a sum in t groups.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import tensor_parallel as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.tensor_parallel.common import MEGATRON, PAYLOAD, pieces, run_module
from minitrain.tensor_parallel import linear as small
from minitrain.tensor_parallel.full import linear as full


def demo(world: World) -> list[Claim]:
    """Runs one layer of each kind; the table shows what is sent when, what is held, and one device's results."""
    rows, n, tokens, inputs, outputs = Rows(MEGATRON), world.size, 25, 8 * world.size, 12 * world.size
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randint(-8, 9, shape, generator=generator).to(world.device, torch.float32)

    whole = nn.Linear(inputs, outputs, device="meta")
    whole.weight, whole.bias = nn.Parameter(draw(outputs, inputs)), nn.Parameter(draw(outputs))
    x, grad_y = draw(tokens, inputs), draw(tokens, outputs)
    y, grad_x, *gradients = run_module(whole, x, grad_y).results

    def own(tensor: Tensor) -> Tensor:
        return tensor.tensor_split(n, -1)[world.rank].contiguous()

    layers_of = {
        "column": (small.ColumnParallelLinear, full.ColumnParallelLinear),
        "row": (small.RowParallelLinear, full.RowParallelLinear),
    }
    # A column-parallel layer takes all of x and has its own columns of Y; a row-parallel layer the other way round.
    parts = {"column": (x, own(grad_y), own(y), grad_x), "row": (own(x), grad_y, y, own(grad_x))}
    sums = {"column": ("backward", inputs, "tokens · in · w"), "row": ("forward", outputs, "tokens · out · w")}
    held = {"column": costs.column_parameters, "row": costs.row_parameters}
    for kind, (form, full_form) in layers_of.items():
        its_x, its_grad_y, *expected = parts[kind]
        way, summed, formula = sums[kind]
        layers = {"small form": form.from_linear(whole), "full form": full_form.from_linear(whole)}
        for name, layer in layers.items():
            found, case = run_module(layer, its_x, its_grad_y), f"{name}, {kind}-parallel"
            own_gradients = pieces(gradients, layer)
            what = "elements of Y, dX, dA, db that differ from one device's, whole numbers"
            rows.equal(what, found.results, [*expected, *own_gradients], source=MEGATRON, case=case)
            busy, idle = (found.forward, found.backward) if way == "forward" else (found.backward, found.forward)
            what = f"{kind}-parallel, small and full form: payload of one all-reduce, {way} only"
            carried = busy.payload("all_reduce") + sum(entry.bytes for entry in idle.entries)
            rows.add(what, formula, costs.payload(1, tokens, summed), carried, "B", PAYLOAD, case=name)
            what, formulas = "bytes of parameters of either layer", "(in + 1) · out/t · w; by rows (in/t + 1) · out · w"
            rows.add(what, formulas, 4 * held[kind](inputs, outputs, n), storage_bytes(layer.parameters()), case=case)
    return rows.claims()
