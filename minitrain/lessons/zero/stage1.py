"""The lesson of `minitrain.zero.stage1`: states held, bytes sent, and DDP's weights."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.costs import zero as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.zero import small
from minitrain.zero import stage1
from minitrain.zero.full.stage1 import Zero1


def demo(world: World) -> list[Claim]:
    """Divides AdamW's states over the ranks; the table shows bytes held and sent, and equality with torch's DDP."""
    rows = Rows(f"{small.PAPER}, §5.1")
    model = small.wrap(world, stage1.Zero1)
    small.sent(rows, world, 1, model, 4, together=small.LAYERS)
    rows.add(
        "small form: bytes of optimizer states between steps",
        "Σ of Ks + c, s = ⌈E/n⌉, K = 8",
        costs.held(1, small.lines(small.LAYERS), world.size)["optimizer states"],
        storage_bytes(optimizer_states(model.optimizer)),
    )
    small.like_full_form(rows, world, stage1.Zero1, Zero1, units=[])  # all layers side by side, too
    small.like_ddp(rows, world, stage1.Zero1, together=small.LAYERS)
    return rows.claims()
