"""What fewer averages cost a language model, and what an outer momentum gives: a small GPT, trained on all ranks.

Nothing here is a claim: how much is lost or gained depends on the model, the data and the rates.
"""

from __future__ import annotations

import torch
from torch import nn

from minitrain.comm import World
from minitrain.comm.messages import all_reduce
from minitrain.data.text import Samples, Text
from minitrain.data_parallel.diloco import DiLoCo
from minitrain.data_parallel.local_sgd import LocalSGD
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

CONFIG = GPTConfig(positions=32, layers=2, hidden=32, heads=2)  # 34,688 parameters
FORMS = {"local SGD, H = 1": (LocalSGD, 1), "local SGD, H = 8": (LocalSGD, 8), "DiLoCo, H = 8": (DiLoCo, 8)}
BATCH, EVERY = 4, 16  # sequences of a rank in a step; steps between two looks at the loss


def losses(world: World, lr: float, steps: int = 64, seed: int = 0) -> dict[str, list[float]]:
    """Train in each form with AdamW of this rate as the inner optimizer, on the same samples.

    Rank r takes every n-th batch. Returned is the mean loss on held-out text of the shared parameters, at the start and
    after every 16th step.
    """
    text = Text.load("reference")
    data, held_out = Samples(text.training, CONFIG.positions, seed), Samples(text.validation, CONFIG.positions)
    found = {}
    for name, (form, every) in FORMS.items():
        model = form(GPT(CONFIG, seed=seed).to(world.device), every)
        optimizer = torch.optim.AdamW(model.module.parameters(), lr=lr)
        found[name] = [loss(world, model.module, held_out)]
        for step in range(steps):
            optimizer.zero_grad()
            tokens = (each.to(world.device) for each in data.batch(step * world.size + world.rank, BATCH))
            model(*tokens)[1].backward()
            optimizer.step()
            model.after_step()
            if (step + 1) % EVERY == 0:  # a multiple of H: all ranks have the same parameters
                found[name].append(loss(world, model.module, held_out))
    return found


@torch.no_grad()
def loss(world: World, module: nn.Module, held_out: Samples, sequences: int = 64) -> float:
    """The mean loss on held-out text, of which each rank takes a part."""
    tokens = (each.to(world.device) for each in held_out.batch(world.rank, sequences))
    mean = module(*tokens)[1].double() / world.size
    all_reduce(mean).wait()
    return mean.item()
