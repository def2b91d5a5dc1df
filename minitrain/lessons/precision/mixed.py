"""The lesson of `minitrain.precision.mixed`: steps in 16 bits against steps in float32, with an overflow on the way."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import precision as costs
from minitrain.costs import zero as zero_costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.precision import curves
from minitrain.lessons.precision.common import Loss, batch, differing, one_thread, over_ranks
from minitrain.lessons.zero import common as zero_lesson
from minitrain.precision.mixed import MixedPrecision
from minitrain.zero.full.stage1 import Zero1

PAPER = "Micikevicius et al. 2018, §3"
ZERO = "Rajbhandari et al. 2020, §3.1"
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
RATE = 3e-3


@one_thread()
def demo(world: World, steps: int = 5) -> list[Claim]:
    """Trains a GPT in float16 and bfloat16; the table shows bytes, weights that all ranks share, and the losses.

    Args:
        steps: Steps of each training.
    """
    world.figure(lambda: curves.picture(world))
    exact = in_float32(world, steps)
    spread, sent, held, steps_taken = {}, {}, {}, {}
    for name, dtype in DTYPES.items():
        training = MixedPrecision(Loss(world.device), dtype, torch.optim.AdamW, lr=RATE)
        elements = sum(master.numel() for master in training.masters)
        at_steps = bytes_at_steps(training)
        with Ledger() as ledger:
            found = [training.step(*batch(world, step)).float() for step in range(steps)]
        finite = 4 * steps
        sent[name] = Claim("", "2Ψ", 2 * elements, (ledger.payload("all_reduce") - finite) / steps, "B", PAPER)
        held[name] = Claim(
            "",
            "2 + 4 + 4 + 8",
            costs.STATES["16 bits, float32 gradients, as Megatron-LM"].total,
            at_steps[-1],
            "B",
            PAPER,
        )
        steps_taken[name] = clipped(world, dtype)
        spread[name] = Claim(
            "", "0", 0, differing(torch.cat([master.flatten() for master in training.masters])), "1", PAPER, "compared"
        )
        off = abs(over_ranks(found[-1]) / world.size - exact).item()
        world.cost(f"loss after {steps} steps in {name}, difference from float32's", off, "nats")
    return [
        fold("bytes per step in float16; in bfloat16", sent, key=True),
        fold("bytes per parameter when the optimizer steps, in float16; in bfloat16", held, key=True),
        fold("weights that differ between ranks, float16; bfloat16", spread, key=True),
        fold("length of an SGD step, gradients clipped to c after they were unscaled", steps_taken, key=True),
        *overflow(world),
        *full_form(world),
    ]


def in_float32(world: World, steps: int) -> Tensor:
    """The last loss of the same training in float32, on the whole batch at once."""
    model = Loss(world.device)
    optimizer, loss = torch.optim.AdamW(model.parameters(), lr=RATE), torch.zeros(())
    for step in range(steps):
        parts = [batch(world, step, rank) for rank in range(world.size)]
        loss = model(*(torch.cat(each) for each in zip(*parts, strict=True)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return loss.detach()


def clipped(world: World, dtype: torch.dtype, clip: float = 0.125) -> Claim:
    """The claim on how far one step of SGD goes whose gradient is longer than `clip`."""
    training = MixedPrecision(Loss(world.device), dtype, torch.optim.SGD, lr=0.5)
    before = [master.detach().clone() for master in training.masters]
    training.step(*batch(world, 0), clip=clip)
    moved = [(a - b).detach().double().square().sum() for a, b in zip(before, training.masters, strict=True)]
    length = torch.stack(moved).sum().sqrt().item()
    source = "Micikevicius et al. 2018, §3.2"
    # Weights of about 1 are off by 2⁻²⁴ each after the step, and there are 35,000.
    return Claim("", "lr · c", 0.5 * clip, length, "1", source, "compared", tolerance=1e-3)


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


def overflow(world: World, at: int = 1) -> list[Claim]:
    """Claims on a step whose scale is so large that gradients become infinite."""
    training = MixedPrecision(Loss(world.device), torch.float16, torch.optim.AdamW, lr=RATE)
    training.step(*batch(world, 0))
    before = [master.detach().clone() for master in training.masters]
    training.scale.scale = 2.0**40
    training.step(*batch(world, 1))
    moved = sum(int((a != b).sum()) for a, b in zip(before, training.masters, strict=True))
    halved = training.scale.scale
    training.scale.scale = 2.0**10
    training.step(*batch(world, 1))
    after = sum(int((a != b).sum()) for a, b in zip(before, training.masters, strict=True))
    return [
        Claim("weights that a step with an overflow changes", "0", 0, moved, "1", PAPER, key=True),
        Claim("scale after it", "2⁴⁰ / 2", 2.0**39, halved, "1", PAPER),
        Claim("weights that the next step changes, at least", "1", 1, after, "1", PAPER, "counted", ">="),
    ]


def full_form(world: World, width: int = 64) -> list[Claim]:
    """Claims on ZeRO's stage 1 with gradients added up in bfloat16 and in float32: 16 and 18 bytes, divided or not."""
    held, sent = {}, {}
    for name, reduce_dtype, item in (("bfloat16", None, 2), ("float32", torch.float32, 4)):
        module = torch.nn.Linear(width, width * world.size, bias=False).to(world.device)
        model = Zero1(module, torch.optim.AdamW, None, torch.bfloat16, reduce_dtype=reduce_dtype, lr=RATE)
        with Ledger() as ledger:
            for _ in range(2):
                model(torch.ones(1, width, device=world.device)).sum().backward()
                model.synchronize()
                model.step()
                model.zero_grad()
        elements = module.weight.numel()
        line = [zero_costs.Line(elements, 2)]
        predicted = sum(zero_costs.held(1, line, world.size, 4 + 8, 4, item).values())
        held[name] = Claim("", "2 + w + 12/n", predicted, sum(zero_lesson.held(model).values()), "B", ZERO)
        found = ledger.payload("reduce_scatter") / 2
        sent[name] = Claim("", "wΨ", item * elements, found, "B", ZERO)
    return [
        fold("bytes held with ZeRO-1, gradients in bfloat16; in float32, as Megatron-LM counts 18", held),
        fold("bytes of gradients per step with ZeRO-1, in bfloat16; in float32", sent),
    ]
