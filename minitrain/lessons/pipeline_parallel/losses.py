"""Does a pipeline without a flush learn as well? A small GPT in five ways, and the loss after as many tokens.

This is a picture, not a claim: it says something about one small model, one text and these learning rates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.messages import all_reduce
from minitrain.data.text import Samples, Text
from minitrain.lessons.pipeline_parallel.versions import taken_out
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel import no_stashing, one_f_one_b, pipedream, splitting, two_buffered, vertical_sync

SEQ, SAMPLES, HIDDEN = 32, 4, 24
NAMES = ("1F1B with a flush", "weight stashing", "no stashing", "vertical sync", "PipeDream-2BW")


def train(world: World, name: str, lr: float, seed: int, microbatches: int) -> list[float]:
    """Trains on `microbatches` micro-batches, a multiple of the n ranks, with SGD, in the way of this name.

    The flush and 2BW update once per n of them. Returned is the mean loss of each n in turn, on every rank.
    """
    ranks = world.size
    sizes = GPTConfig(positions=SEQ, layers=ranks, hidden=HIDDEN, heads=2, tied=False)
    model = GPT(sizes, seed=seed).to(world.device)
    stage = splitting.split(model, splitting.evenly(model, ranks))[world.rank]
    samples = Samples(Text.load("reference").training, SEQ, seed)
    taken = [samples.batch(number, SAMPLES) for number in range(microbatches)]
    inputs, targets = ([each[part].to(world.device) for each in taken] for part in (0, 1))
    template = torch.empty(SAMPLES, SEQ, HIDDEN, device=world.device)
    losses: list[Tensor] = []
    if name == "1F1B with a flush":
        optimizer = torch.optim.SGD(stage.parameters(), lr=lr)
        for begin in range(0, microbatches, ranks):
            optimizer.zero_grad()
            batch = slice(begin, begin + ranks)
            mean = one_f_one_b.step(stage, inputs[batch], targets[batch], model.loss, template)
            losses += [] if mean is None else [mean] * ranks
            optimizer.step()
    else:
        arguments = stage, {0: taken_out(stage)}, inputs, targets, model.loss, template, lr
        if name == "PipeDream-2BW":
            losses = two_buffered.train(*arguments, k=ranks)
        else:
            forms = {"no stashing": no_stashing, "weight stashing": pipedream, "vertical sync": vertical_sync}
            losses = forms[name].train(*arguments)
    # Only the last rank has losses; the sum with zeros gives them to all.
    known = torch.stack(losses) if losses else torch.zeros(microbatches, device=world.device)
    all_reduce(known).wait()
    return known.view(-1, ranks).mean(1).tolist()
