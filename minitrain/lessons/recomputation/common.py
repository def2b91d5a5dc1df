"""Shared by the demos of this chapter: a small GPT, a count of what autograd keeps at each moment, and comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import Peak, SavedActivations, World
from minitrain.lessons.rows import Rows
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

How = Callable[[GPT], Any]
"""Has a GPT recompute something, in place."""

KORTHIKANTI = "Korthikanti et al. 2022"
CHEN = "Chen et al. 2016"


def nothing(gpt: nn.Module) -> None:
    """Has a model recompute nothing."""


class AliveActivations:
    """Counts what autograd keeps at each moment: `with AliveActivations(model) as alive: model(x).backward()`.

    Where `SavedActivations` adds up what forward keeps, this one also takes off what backward has used, and sees what
    is kept while a function is computed again. Each storage counts once, for as long as an operation keeps it; the
    modules' own parameters and buffers do not. `history` has the bytes kept after each change.
    """

    def __init__(self, *modules: nn.Module):
        held = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        self._held = {t.untyped_storage().data_ptr() for t in held}
        self._keepers = Counter[int]()  # address of a storage -> how many operations keep it
        self.history = [0]
        self._hooks = saved_tensors_hooks(lambda tensor: _Kept(self, tensor), lambda kept: kept.tensor)

    @property
    def bytes(self) -> int:
        """Bytes kept now."""
        return self.history[-1]

    @property
    def peak(self) -> int:
        """The most bytes that were kept at once."""
        return max(self.history)

    def change(self, tensor: Tensor, keepers: int) -> None:
        """One operation more, or less, keeps `tensor`."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in self._held or not storage.nbytes():
            return
        before = self._keepers[address]
        self._keepers[address] += keepers
        if 0 in (before, before + keepers):
            self.history.append(self.bytes + keepers * storage.nbytes())

    def __enter__(self) -> AliveActivations:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)


class _Kept:
    """What an operation holds in place of a tensor; it dies when the operation's backward is done."""

    def __init__(self, alive: AliveActivations, tensor: Tensor):
        self.alive, self.tensor = alive, tensor
        alive.change(tensor, 1)

    def __del__(self) -> None:
        self.alive.change(self.tensor, -1)


class Step(NamedTuple):
    """One step: bytes that forward kept, the most at once, the bytes after each change, and the gradients."""

    kept: int
    peak: int
    history: list[int]
    gradients: list[Tensor]


def measure(model: nn.Module, *inputs: Tensor) -> Step:
    """One step, from a fixed random state; the peak is not known to autograd where `early_stop` fills gaps."""
    torch.manual_seed(0)
    with SavedActivations(model) as saved:
        loss(model, inputs)
    torch.manual_seed(0)
    with AliveActivations(model) as alive:
        loss(model, inputs).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return Step(saved.bytes, alive.peak, alive.history, gradients)


def loss(model: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
    """The loss of a GPT; of any other module the sum of its result."""
    outputs = model(*inputs)
    return outputs[1] if isinstance(outputs, tuple) else outputs.sum()


def unlike(step: Step, other: Step) -> int:
    """How many elements of all gradients are not the same number."""
    return sum(int((mine != its).sum()) for mine, its in zip(step.gradients, other.gradients, strict=True))


@dataclass(frozen=True)
class Trial:
    """A small GPT and a batch of each rank's own, to be tried in several ways; attention written out."""

    world: World
    layers: int
    hidden: int
    heads: int
    batch: int
    sequence: int
    vocabulary: int = 61

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """b, s, h, a, L, V: in the order in which `costs` takes them."""
        return self.batch, self.sequence, self.hidden, self.heads, self.layers, self.vocabulary

    def gpt(self, how: How = nothing, dropout: float = 0.0) -> GPT:
        """The GPT, the same each time, with `how` done to it."""
        sizes = (self.vocabulary, self.sequence, self.layers, self.hidden, self.heads)
        gpt = GPT(GPTConfig(*sizes, dropout=dropout, attention="plain"), seed=0).to(self.world.device)
        how(gpt)
        return gpt

    def tokens(self) -> tuple[Tensor, Tensor]:
        """This rank's inputs and targets."""
        generator = torch.Generator().manual_seed(self.world.rank)
        shape = (2, self.batch, self.sequence)
        inputs, targets = torch.randint(self.vocabulary, shape, generator=generator).to(self.world.device)
        return inputs.clone(), targets.clone()  # each with memory of its own, since they are not kept equally long

    def step(self, how: How = nothing, dropout: float = 0.0) -> Step:
        """One step of it."""
        return measure(self.gpt(how, dropout), *self.tokens())

    def operations(self, how: How = nothing) -> int:
        """Operations of the matrix products in one step of it, as torch counts them."""
        gpt, tokens = self.gpt(how), self.tokens()
        with FlopCounterMode(display=False) as counter:
            loss(gpt, tokens).backward()
        return counter.get_total_flops()


def equal(rows: Rows, trial: Trial, ways: dict[str, How]) -> None:
    """Claim that with dropout, too, gradients have the bits that they have without recomputation.

    Each product, sum and random number of the second call has the operands of the first, in the same order, and each
    parameter gets one gradient; so nothing can round in another way.
    """
    plain = trial.step(dropout=0.1)
    what = f"{', '.join(ways)}: elements of gradients that differ from those without recomputation"
    for name, how in ways.items():
        rows.equal(what, trial.step(how, dropout=0.1).gradients, plain.gradients, "g = g_kept", case=name)


def one_more_block(trial: Trial, how: How) -> int:
    """What one more block adds to the allocator's peak of a step, which also sees what is kept outside of autograd."""
    peaks = []
    for layers in (trial.layers, trial.layers + 1):
        gpt, tokens = replace(trial, layers=layers).gpt(how), trial.tokens()
        loss(gpt, tokens).backward()  # gradients exist
        with Peak(trial.world.device) as peak:
            loss(gpt, tokens).backward()
        peaks.append(peak.bytes)
    return peaks[1] - peaks[0]
