"""The lesson of `minitrain.precision.mixed`: bytes of steps in 16 bits, clipping, and an overflow on the way."""

from __future__ import annotations

import torch

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import precision as costs
from minitrain.lessons.pictures import precision as pictures
from minitrain.lessons.precision import curves
from minitrain.lessons.precision.common import Loss, batch, differing, one_thread
from minitrain.lessons.rows import Claim, Rows
from minitrain.precision.mixed import MixedPrecision

CLIP, STEPS = 0.125, 2


@one_thread()
def demo(world: World) -> list[Claim]:
    """Trains a GPT in float16 and bfloat16; the table shows bytes, weights that all ranks share, and clipped steps."""
    world.figure(lambda: pictures.losses({each: curves.losses(world, *each) for each in curves.TRAININGS}))
    rows = Rows("Micikevicius et al. 2018, §3")
    for name, dtype in {"float16": torch.float16, "bfloat16": torch.bfloat16}.items():
        training = MixedPrecision(Loss(world.device), dtype, torch.optim.AdamW, lr=3e-3)
        elements, at_steps = sum(master.numel() for master in training.masters), bytes_at_steps(training)
        with Ledger() as ledger:
            for step in range(STEPS):
                training.step(*batch(world, step))
        sent = ledger.payload("all_reduce") / STEPS - 4  # whether all is finite
        rows.add("bytes per step in float16; in bfloat16", "2Ψ", 2 * elements, sent, case=name)
        what = "bytes per parameter when the optimizer steps, in float16; in bfloat16"
        predicted = costs.STATES["16 bits, float32 gradients, as Megatron-LM"].total
        rows.add(what, "2 + 4 + 4 + 8", predicted, at_steps[-1], case=name)
        what, found = "weights that differ between ranks, float16; bfloat16", differing(weights(training))
        rows.add(what, "0", 0, found, "1", case=name, how="compared")

        plain = MixedPrecision(Loss(world.device), dtype, torch.optim.SGD, lr=0.5)
        before = weights(plain)
        plain.step(*batch(world, 0), clip=CLIP)
        length = (weights(plain) - before).double().norm().item()
        what = "length of an SGD step, gradients clipped to c after they were unscaled"
        # Weights of about 1 are off by 2⁻²⁴ each after the step, and there are 35,000.
        near = {"how": "compared", "tolerance": 1e-3}
        rows.add(what, "lr · c", 0.5 * CLIP, length, "1", f"{rows.source}.2", case=name, **near)
    training = MixedPrecision(Loss(world.device), torch.float16, torch.optim.AdamW, lr=3e-3)
    before, training.scale.scale = weights(training), 2.0**40  # with which gradients become infinite
    training.step(*batch(world, 1))
    rows.equal("weights that a step with an overflow changes", weights(training), before, source=rows.source)
    return rows.claims()


def weights(training: MixedPrecision) -> torch.Tensor:
    """A copy of all master weights."""
    return torch.cat([master.detach().flatten() for master in training.masters])


def bytes_at_steps(training: MixedPrecision) -> list[float]:
    """Per parameter, at each step of the optimizer from now on: module, copies, the gradients of both, and states."""
    found: list[float] = []

    def count(optimizer: torch.optim.Optimizer, *arguments: object) -> None:
        parameters = [*training.module.parameters(), *training.masters]
        states = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
        held = storage_bytes([*parameters, *(parameter.grad for parameter in parameters), *states])
        found.append(held / sum(master.numel() for master in training.masters))

    # At the end of the step, so that the first one has made its states.
    training.optimizer.register_step_post_hook(count)
    return found
