"""The lesson of `minitrain.zero.stage1`: states held, bytes sent, DDP's weights, and the time that overlap leaves."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.costs import zero as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.zero import small, step_time
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
    # The small form waits for all messages; the full form sends them while layers run.
    for speed in step_time.SPEEDS:
        rows.time(
            "full form: time of a step of 4 layers, messages under backward and forward, and at other speeds",
            "2c + F + B + (L−1)(max(F,c) + max(B,c))",
            step_time.overlapped_step_time(world.size, *speed),
            step_time.measured(world, Zero1, *speed)[0],
            "derived",
            case=f"{speed[0]} layers",
        )
    small.like_ddp(rows, world, stage1.Zero1, together=small.LAYERS)
    return rows.claims()
