"""What do old weights cost? A small GPT, trained with weights of five ages, and the loss after as many updates.

Nothing is claimed here: the losses are those of one small model and one text.
"""

from __future__ import annotations

import torch

from minitrain.comm import World, axes
from minitrain.comm.messages import all_reduce
from minitrain.data.text import Samples, Text
from minitrain.lessons.pipeline_parallel.versions import taken_out
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel import no_stashing, pipedream, splitting, two_buffered, vertical_sync

SEQ, SAMPLES, HIDDEN = 32, 4, 24
FORMS = {
    "one device": pipedream.train,  # on a pipeline of one stage nothing is old
    "weight stashing": pipedream.train,
    "no stashing": no_stashing.train,
    "vertical sync": vertical_sync.train,
    "PipeDream-2BW": lambda *args, **group: two_buffered.train(*args, k=SAMPLES, **group),  # one sample at a time
}


def train(world: World, name: str, lr: float, seed: int, updates: int) -> list[float]:
    """Trains with SGD in the way of this name; returns the loss of each update's samples, on every rank."""
    assert world.size <= SAMPLES, f"2BW takes {SAMPLES} micro-batches per update here; use Ranks({SAMPLES}) or fewer"
    alone, size = name == "one device", 1 if name == "PipeDream-2BW" else SAMPLES  # samples of a micro-batch
    ranks = 1 if alone else world.size
    pipeline = axes(copies=world.size // ranks, pp=ranks)["pp"].get_group()
    sizes = GPTConfig(positions=SEQ, layers=world.size, hidden=HIDDEN, heads=2, tied=False)
    model = GPT(sizes, seed=seed).to(world.device)
    stage = splitting.split(model, splitting.evenly(model, ranks))[0 if alone else world.rank]
    samples = Samples(Text.load("reference").training, SEQ, seed)
    taken = [samples.batch(number, SAMPLES) for number in range(updates)]
    inputs, targets = (torch.cat([each[part] for each in taken]).to(world.device).split(size) for part in (0, 1))
    template = torch.empty(size, SEQ, HIDDEN, device=world.device)
    losses = FORMS[name](stage, {0: taken_out(stage)}, inputs, targets, model.loss, template, lr, group=pipeline)
    # Only a last rank has losses; the sum with zeros gives them to all.
    known = (torch.stack(losses) if world.rank == world.size - 1 else torch.zeros(len(inputs))).to(world.device)
    all_reduce(known).wait()
    return known.view(updates, -1).mean(1).tolist()
