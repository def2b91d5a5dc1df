"""What the demo of `synchronous` claims for the small form: bytes, optimizer states, and equality with one device."""

from __future__ import annotations

from typing import Any

from minitrain.comm import Ledger, World
from minitrain.comm.memory import model_states
from minitrain.lessons.claims import Claim, as_key, fold
from minitrain.lessons.data_parallel.common import small_gpt
from minitrain.lessons.parameter_server.training import HIDDEN, LAYERS, OPTIMIZERS, Trained, backward, one_device
from minitrain.parameter_server import synchronous
from minitrain.parameter_server.full.roles import split_roles

LINK = "small form: bytes through this rank's link in a step, in and out", "2nS at the server; 2S at a worker"
STATES = "small form: bytes of AdamW's states at this rank", "2S + 4P at the server; 0 at a worker"
SAME = "small form: weights that differ from one device's and from the full form's after 3 steps of AdamW", "0"


def claims(world: World) -> list[Claim]:
    """Claims on the synchronous server, as key ones."""
    if world.size < 2:
        return [Claim.needs_ranks(2, *row, key=True) for row in (LINK, STATES, SAME)]
    workers, steps = world.size - 1, 3
    module = small_gpt(world, world.rank, LAYERS, HIDDEN)
    parameters = list(module.parameters())
    size = sum(parameter.nbytes for parameter in parameters)
    predicted = held = 0
    if world.rank == synchronous.SERVER:
        server = synchronous.Server(module, OPTIMIZERS["AdamW"])
        with Ledger() as ledger:
            server.serve(steps)
        server.answer()
        predicted = 2 * size + 4 * len(parameters)
        held = model_states(module, server.optimizer)["optimizer states"]
    else:
        worker = synchronous.Worker(module)
        with Ledger() as ledger:
            for step in range(steps):
                worker.pull()
                backward(world, module, world.rank - 1, step)
                worker.push()
                module.zero_grad()
        worker.pull()
    link = 2 * size * (workers if world.rank == synchronous.SERVER else 1)
    full = Trained(world, split_roles(1), OPTIMIZERS["AdamW"])
    full.steps(steps)
    full.finish()
    reference = one_device(world, "AdamW", steps, workers)
    same = {
        name: Claim("", "0", 0, differing(parameters, others.parameters()), "1", "derived", "compared")
        for name, others in (("one device", reference), ("full form", full.module))
    }
    return as_key(
        Claim(*LINK, link, (ledger.sent + ledger.received) / steps, "B", "derived"),
        Claim(*STATES, predicted, held, "B", "derived"),
        fold(SAME[0], same),
    )


def differing(found: Any, expected: Any) -> int:
    """How many elements differ."""
    return sum(int((mine != theirs).sum()) for mine, theirs in zip(found, expected, strict=True))
