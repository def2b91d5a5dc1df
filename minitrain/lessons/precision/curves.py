"""Losses of a small GPT in five precisions over five seeds: an experiment of chapter 06."""

from __future__ import annotations

import math
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.data.text import Samples, Text
from minitrain.lessons.pictures.precision import LOOKS
from minitrain.lessons.precision.common import SEQ, Loss, one_thread
from minitrain.precision import fp8
from minitrain.precision.mixed import MixedPrecision

RATE = 2e-3
MIXED = {"bfloat16": torch.bfloat16, "float16": torch.float16, "fp8": torch.bfloat16}
ALONE = "float16 alone"
TRAININGS, STEPS = list(product(LOOKS, range(5))), 30  # by precision and seed


class EightBits(nn.Module):
    """A linear layer whose three products are in 8 bits, with scales found just in time."""

    def __init__(self, inner: nn.Linear):
        super().__init__()
        self.inner, self.scales = inner, (fp8.Scale(), fp8.Scale(), fp8.Scale())

    def forward(self, x: Tensor) -> Tensor:
        out = fp8.Linear.apply(x.flatten(0, -2), self.inner.weight.t(), self.scales)
        return out.view(*x.shape[:-1], -1) + self.inner.bias


def in_eight_bits(model: Loss) -> Loss:
    """Replace the linear layers of all blocks; embedding, norms and head stay as they are."""
    for block in model.gpt.blocks:
        for part in block.children():
            for name, layer in list(part.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(part, name, EightBits(layer))
    return model


@one_thread()
def losses(world: World, name: str, seed: int) -> list[float]:
    """One training on this rank: in float32, in mixed precision, or in float16 with neither copy nor scale."""
    samples, model = Samples(Text.load().training, SEQ), Loss(world.device, seed)
    parts = [[each.to(world.device) for each in samples.batch(step, 8, 0, 1)] for step in range(STEPS)]
    if name in MIXED:
        # With gloo, which needs the members alone: NCCL would split everyone's group, with all ranks at once.
        group = dist.new_group([world.rank], backend="gloo", use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        model = in_eight_bits(model) if name == "fp8" else model
        training = MixedPrecision(model, MIXED[name], torch.optim.AdamW, group, lr=RATE)
        found = [training.step(*part).item() for part in parts]
        dist.destroy_process_group(group)
        return found
    if name == ALONE:
        model = model.half()
    # torch's ε of 1e-8 would be 0 in float16.
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=1e-7 if name == ALONE else 1e-8)
    found = []
    for part in parts:
        loss = model(*part)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
        if math.isnan(found[-1]):  # and so are all that follow
            break
    return found + [math.nan] * (STEPS - len(found))


def trained(world: World) -> dict[tuple[str, int], list[float]]:
    """All trainings, divided over the ranks; the same on all of them."""
    mine = {each: losses(world, *each) for each in TRAININGS[world.rank :: world.size]}
    together = {each: run for part in gather_objects(mine) for each, run in part.items()}
    return {each: together[each] for each in TRAININGS}
