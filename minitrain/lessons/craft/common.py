"""A small GPT on real text that the lessons of this chapter train, and batches that are no text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.messages import all_reduce
from minitrain.data.text import Batch, Numbered, Samples, Text
from minitrain.data_parallel.local_sgd import average
from minitrain.lessons.precision.common import one_thread
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

SEQ, SAMPLES = 32, 4  # tokens of a sample, and samples of a rank in a batch


class Training:
    """A GPT under data parallelism; `step(n)` trains on batch n, each rank on so many samples of it.

    `bad` says of some batches what comes in their place: "garbage" or "repeats".
    """

    def __init__(
        self, world: World, bad: Any = (), lr: float = 3e-3, samples: int = SAMPLES, layers: int = 2, hidden: int = 32
    ):
        self.world, self.bad, self.each = world, dict[int, str](bad), samples
        config = GPTConfig(256, SEQ, layers=layers, hidden=hidden, heads=2, attention="plain")
        self.model = GPT(config, seed=0).to(world.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, betas=(0.9, 0.95))
        self.samples: Numbered = Samples(Text.load().training, SEQ)
        self.steps = 0

    def batch(self, number: int) -> Batch:
        """Inputs and targets of this rank, each [samples, SEQ]."""
        first = (number * self.world.size + self.world.rank) * self.each
        samples = range(first, first + self.each)
        inputs, targets = no_text(self.bad[number], samples) if number in self.bad else self.samples.take(samples)
        return inputs.to(self.world.device), targets.to(self.world.device)

    def step(self, number: int) -> float:
        """Train on a batch; returns the mean loss over all ranks."""
        self.steps += 1
        with one_thread():
            _, loss = self.model(*self.batch(number))
            loss.backward()
        average(p.grad for p in self.model.parameters() if p.grad is not None)
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = loss.detach().double()
        all_reduce(mean).wait()
        return mean.item() / self.world.size

    def state(self) -> tuple[dict[str, Tensor], dict]:
        return self.model.state_dict(), self.optimizer.state_dict()

    def load(self, state: tuple[dict[str, Tensor], dict]) -> None:
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


def no_text(kind: str, samples: Iterable[int]) -> Batch:
    """Samples that spoil a batch: bytes drawn at random, or one byte again and again."""
    windows = []
    for sample in samples:
        generator = torch.Generator().manual_seed(sample)
        drawn = torch.randint(256, (SEQ + 1,), generator=generator)
        windows.append(drawn if kind == "garbage" else torch.full((SEQ + 1,), ord(" ")))
    both = torch.stack(windows)
    return both[:, :-1], both[:, 1:]


@torch.no_grad()
def token_losses(model: torch.nn.Module, batch: Batch) -> Tensor:
    """The loss of each token, [samples, seq], in nats."""
    inputs, targets = batch
    logits, _ = model(inputs)
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2).double(), targets, reduction="none")
