"""What a block of the GPT sends and holds over the ranks, and that its results are those of one device.

Key and value have their own heads here; the full form, where ranks share them, is in its tests. The MLP is also cut in
the worse order, rows first, whose sum is four times as wide.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.collectives.full import ring
from minitrain.comm import World
from minitrain.comm.comm import Comm
from minitrain.comm.memory import storage_bytes
from minitrain.costs import tensor_parallel as costs
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.lessons.tensor_parallel.common import MEGATRON, PAYLOAD, RING, pieces, run_module
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import MLP, Block
from minitrain.tensor_parallel import attention as small
from minitrain.tensor_parallel.full.attention import ParallelAttention, ParallelMLP
from minitrain.tensor_parallel.full.linear import ColumnParallelLinear, RowParallelLinear
from minitrain.tensor_parallel.full.mappings import gather_from_parallel, split_to_parallel

THROUGH = "bytes sent by this rank through the ring"
Cut = Callable[..., nn.Module]  # what makes this rank's part of a module: (module, comm)


class RowFirstMLP(nn.Module):
    """The counter-example: rows first, then columns. Its results are right, but expensive.

    GELU is not linear: gelu(X₁A₁) + gelu(X₂A₂) is not gelu(X₁A₁ + X₂A₂). So every rank needs the sum before it: the
    all-reduce is 4h wide instead of h, and every rank computes the whole GELU (Shoeybi et al. 2019, §3, first option).
    """

    def __init__(self, mlp: MLP, comm: Comm):
        super().__init__()
        self.up = RowParallelLinear.from_linear(mlp.up, comm)
        self.down = ColumnParallelLinear.from_linear(mlp.down, comm)

    def forward(self, x: Tensor) -> Tensor:
        # Each rank takes its part of x, and backward gathers the parts of the gradient.
        wide = F.gelu(self.up(split_to_parallel(x, self.up.comm)), approximate="tanh")  # [batch, seq, 4·hidden]
        # The residual stream needs the output in full.
        return gather_from_parallel(self.down(wide), self.down.comm)


def demo(world: World) -> list[Claim]:
    """Cuts a block of the GPT; the table shows four all-reduces, what a rank holds, and a worse order."""
    rows, batch, seq, heads = Rows(MEGATRON), 2, 12, 2 * world.size  # so that the ranks divide the width
    sizes = GPTConfig(positions=seq, hidden=4 * heads, heads=heads, attention="plain")
    whole, (x, grad_y) = block(world, sizes), inputs(world, sizes, batch)
    y, grad_x, *gradients = run_module(whole, x, grad_y).results
    blocks = {
        "small form": in_parallel(whole, small.ParallelAttention, small.ParallelMLP),
        "full form": in_parallel(whole, ParallelAttention, ParallelMLP, Comm(collectives=ring)),
        "an MLP cut rows first": in_parallel(whole, None, RowFirstMLP, Comm(collectives=ring)),
    }
    found = {}
    for case, parallel in blocks.items():
        found[case] = run_module(parallel, x, grad_y)
        own_gradients = pieces(gradients, parallel)
        what = "a layer, Y, dX and all gradients against one device: distance, float64"
        rows.near(what, found[case].results, [y, grad_x, *own_gradients], 1e-12, "10⁻¹²", ROUNDING, case)

    shape, place = (batch, seq, sizes.hidden), (world.size, world.rank)
    own, full, wide = found.values()
    for way in ("forward", "backward"):
        what, payload = "small form, a layer: payload of two all-reduces, each way", costs.payload(*shape, item=8)
        carried = getattr(own, way).payload("all_reduce")
        rows.add(what, "2 · bsh · w", 2 * payload, carried, "B", PAYLOAD, case=way)
        what, formula = "a layer, each way", "Σ 2S − cᵣ − cᵣ₊₁ ≈ 4(t−1)/t · bsh · w"
        sent = costs.layer_traffic(*shape, *place, 8).bytes
        rows.add(f"{what}: {THROUGH}", formula, sent, getattr(full, way).sent, "B", RING, case=way)
        what, formula = "an MLP cut rows first, each way", "all-reduce and gather ≈ 9(t−1)/t · bsh · w"
        sent = costs.row_first_mlp_traffic(*shape, *place, 8).bytes
        rows.add(f"{what}: {THROUGH}", formula, sent, getattr(wide, way).sent, "B", RING, case=way)
    for case in ("small form", "full form"):
        what, held = "a layer: bytes of parameters", 8 * costs.layer_parameters(sizes.hidden, sizes.heads, world.size)
        measured = storage_bytes(blocks[case].parameters())
        rows.add(what, "(12h²/t + 7h/t + 6h) · w", held, measured, case=case)
    return rows.claims()


def block(world: World, sizes: GPTConfig) -> Block:
    """The block for one device, the same on all ranks. No bias is 0, so that one added twice would show."""
    made, generator = Block(sizes).to(world.device, torch.float64), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn / parameter.shape[-1] ** 0.5)
    return made


def inputs(world: World, sizes: GPTConfig, batch: int) -> tuple[Tensor, Tensor]:
    """x and the gradient of y, `[batch, seq, hidden]`, the same on all ranks."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(2, batch, sizes.positions, sizes.hidden, generator=generator, dtype=torch.float64)
    x, grad_y = drawn.to(world.device)
    return x, grad_y


def in_parallel(whole: Block, attention: Cut | None, mlp: Cut, *comm: Comm) -> Block:
    """A copy of a block with its MLP, and perhaps its attention, over all ranks."""
    made = copy.deepcopy(whole)
    made.set_submodule("mlp", mlp(made.mlp, *comm))
    if attention:
        made.set_submodule("attention", attention(made.attention, *comm))
    return made
