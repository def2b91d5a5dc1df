"""The lesson of `minitrain.zero.offload`: which bytes are where, how many cross in a step, and that no bit changes."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.costs import zero as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.zero import small
from minitrain.lessons.zero.crossings import Crossings
from minitrain.zero import offload
from minitrain.zero.full.stage2 import Zero2


def demo(world: World) -> list[Claim]:
    """Moves optimizer states and the step to the host; the table shows where bytes are, and how many cross."""
    micro_batches = 3
    rows = Rows("Ren et al. 2021, §3.4")
    model = small.wrap(world, offload.ZeroOffload)
    small.sent(rows, world, 2, model, micro_batches)
    held = costs.held(2, small.lines(), world.size)
    gradients = [parameter.grad for parameter in model.module.parameters()]
    on_device = storage_bytes([*model.flats, *model.module.parameters(), *gradients])
    rows.add("small form: bytes on the device", "4Ψ", held["parameters"], on_device)
    host = [*model.shards, *(shard.grad for shard in model.shards), *optimizer_states(model.optimizer)]
    # The host has a shard of the parameters, too, as large as that of the gradients; both cross.
    predicted = 2 * held["gradients"] + held["optimizer states"]
    rows.add("small form: bytes on the host", "(4 + 12)Ψ/n + counters of Adam", predicted, storage_bytes(host))
    for many in (micro_batches, 1):
        with Crossings(host) as found:
            small.step(world, model, micro_batches=many)
        step, case = f"in a step of A = {micro_batches} micro-batches, and of one", f"A = {many}"
        rows.add(f"bytes copied to the host {step}", "A · 4Ψ/n", many * held["gradients"], found.out, case=case)
        rows.add(f"bytes copied to the device {step}", "4Ψ/n", held["gradients"], found.back, case=case)
    small.like_full_form(rows, world, offload.ZeroOffload, Zero2, "stage 2's")
    return rows.claims()
