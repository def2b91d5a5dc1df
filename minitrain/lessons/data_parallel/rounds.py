"""What fewer averages cost a language model: a small GPT, trained on all ranks with several periods H.

Nothing here is a claim: how much is lost depends on the model, the data and the rates. In a run this short the outer
momentum of DiLoCo has no time to pay, but its loss hardly rises with H, as that of local SGD does.
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
FORMS = {"local SGD": LocalSGD, "DiLoCo": DiLoCo}
BATCH, LR = 4, 0.003


def losses(
    world: World, steps: int = 128, periods: tuple[int, ...] = (1, 4, 16, 64), seed: int = 0
) -> dict[tuple[str, int], float]:
    """Train once for each form and H, a divisor of the steps, with AdamW as the inner optimizer, on the same samples.

    Rank r takes every n-th batch. Returned is the mean loss on held-out text of the shared parameters, by form and H.
    """
    text = Text.load("reference")
    data, held_out = Samples(text.training, CONFIG.positions, seed), Samples(text.validation, CONFIG.positions)
    found = {}
    for (name, form), every in ((pair, every) for pair in FORMS.items() for every in periods):
        model = form(GPT(CONFIG, seed=seed).to(world.device), every)
        optimizer = torch.optim.AdamW(model.module.parameters(), lr=LR)
        for step in range(steps):
            optimizer.zero_grad()
            tokens = (each.to(world.device) for each in data.batch(step * world.size + world.rank, BATCH))
            model(*tokens)[1].backward()
            optimizer.step()
            model.after_step()
        found[name, every] = loss(world, model.module, held_out)
    return found


@torch.no_grad()
def loss(world: World, module: nn.Module, held_out: Samples, sequences: int = 64) -> float:
    """The mean loss on held-out text, of which each rank takes a part."""
    tokens = (each.to(world.device) for each in held_out.batch(world.rank, sequences))
    mean = module(*tokens)[1].double() / world.size
    all_reduce(mean).wait()
    return mean.item()
