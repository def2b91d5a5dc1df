"""The lesson of `minitrain.zero.stage3`: what is held and gathered at once, bytes sent, time, and DDP's weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from minitrain.comm import World
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.comm.messages import Handle
from minitrain.costs import zero as costs
from minitrain.lessons.pictures import zero as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.zero import small, step_time
from minitrain.zero import stage3
from minitrain.zero.full.stage3 import Zero3


def demo(world: World) -> list[Claim]:
    """Gathers parameters when they are needed; the table shows bytes held and sent, and equality with torch's DDP."""
    rows = Rows(f"{small.PAPER}, §5.3")
    model = small.wrap(world, stage3.Zero3)
    small.sent(rows, world, 3, model, 2)
    shards = [tensor for unit in model.units for tensor in (unit.flat, unit.shard, unit.shard.grad)]
    rows.add(
        "small form: bytes of parameters, gradients and optimizer states between steps",
        "Σ of 4s, 4s and 8s + 4, s = ⌈E/n⌉",
        sum(costs.held(3, small.lines(), world.size).values()),
        storage_bytes([*shards, *optimizer_states(model.optimizer)]),
    )
    rows.add(
        "small form: most bytes of whole parameters at once",
        "2 units of nsw",
        2 * world.size * costs.shard_elements(small.WIDTH**2, world.size) * 4,
        whole_at_once(world, model),
        source="Zhao et al. 2023, §3.2.1",
    )
    small.like_full_form(rows, world, stage3.Zero3, Zero3)
    # A network that carries messages while layers run is only in the full form's reach.
    for speed in step_time.SPEEDS:
        rows.time(
            "full form: time of a step of 4 layers, the next unit prefetched, and at other speeds",
            "3c + (L−1)·max(F,c) + F + 2·max(B,c) + (L−2)·max(B,2c)",
            step_time.step_time(world.size, *speed),
            step_time.measured(world, Zero3, *speed)[0],
            "Zhao et al. 2023, §3.3",
            case=f"{speed[0]} layers",
        )
    small.like_ddp(rows, world, stage3.Zero3)
    spans = step_time.spans_of_stage3(world, Zero3)
    world.figure(lambda: pictures.prefetching(spans))
    return rows.claims()


def whole_at_once(world: World, model: stage3.Zero3) -> int:
    """The most bytes of whole parameters in a step, looked at whenever a unit has got memory."""
    found = []

    def watched(prefetch: Callable[[], Handle]) -> Handle:
        handle = prefetch()
        found.append(sum(unit.flat.untyped_storage().nbytes() for unit in model.units))
        return handle

    for unit in model.units:
        unit.prefetch = partial(watched, unit.prefetch)  # type: ignore[method-assign]
    small.step(world, model)
    return max(found)
