"""Shared by the demos of this chapter: a small GPT, a count of what autograd keeps at each moment, and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import Peak, SavedActivations, World
from minitrain.lessons.claims import Claim, fold
from minitrain.models.config import AttentionKind, GPTConfig
from minitrain.models.gpt import GPT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

How = Callable[[GPT], None]
"""Has a GPT recompute something, in place."""

KORTHIKANTI = "Korthikanti et al. 2022"
CHEN = "Chen et al. 2016"
DROPOUT = 0.1  # where gradients are compared; where bytes are counted there is none


def nothing(gpt: nn.Module) -> None:
    """Has a model recompute nothing."""


class AliveActivations:
    """Counts what autograd keeps at each moment: `with AliveActivations(model) as alive: model(x).backward()`.

    Where `SavedActivations` adds up what forward keeps, this one also takes off what backward has used, and sees what
    is kept while a function is computed again. Parameters and buffers are left out, since they are held anyway; each
    storage counts once, for as long as at least one operation keeps it.

    Args:
        *modules: The modules whose parameters and buffers are left out.

    Attributes:
        bytes: Bytes kept now.
        peak: The most bytes that were kept at once.
        history: Bytes kept after each change.
    """

    def __init__(self, *modules: nn.Module):
        held = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        self._held = {t.untyped_storage().data_ptr() for t in held}
        self._keepers: dict[int, int] = {}  # address of a storage -> how many operations keep it
        self.bytes = self.peak = 0
        self.history = [0]
        self._hooks = saved_tensors_hooks(lambda tensor: _Kept(self, tensor), lambda kept: kept.tensor)

    def change(self, tensor: Tensor, keepers: int) -> None:
        """One operation more, or less, keeps `tensor`."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in self._held or not storage.nbytes():
            return
        before = self._keepers.get(address, 0)
        self._keepers[address] = before + keepers
        if 0 in (before, before + keepers):
            self.bytes += keepers * storage.nbytes()
            self.peak = max(self.peak, self.bytes)
            self.history.append(self.bytes)

    def __enter__(self) -> AliveActivations:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)


class _Kept:
    """What an operation holds in place of a tensor; it dies when the operation's backward is done."""

    def __init__(self, alive: AliveActivations, tensor: Tensor):
        self.alive, self.tensor = alive, tensor
        alive.change(tensor, 1)

    def __del__(self) -> None:
        self.alive.change(self.tensor, -1)


@dataclass(frozen=True)
class Step:
    """The measurements of one step of forward and backward.

    Attributes:
        kept: Bytes that forward kept for backward.
        peak: The most bytes that autograd kept at once; not known to it where `early_stop` fills gaps.
        history: Bytes kept after each change.
        gradients: Of each parameter.
        following: A random number drawn after the step.
    """

    kept: int
    peak: int
    history: list[int]
    gradients: list[Tensor]
    following: float


def measure(model: nn.Module, *inputs: Tensor) -> Step:
    """One step, from a fixed random state."""
    torch.manual_seed(0)
    with SavedActivations(model) as saved:
        loss(model, inputs)
    torch.manual_seed(0)
    with AliveActivations(model) as alive:
        loss(model, inputs).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    following = float(torch.rand((), device=inputs[0].device))
    return Step(saved.bytes, alive.peak, alive.history, gradients, following)


def operations(model: nn.Module, *inputs: Tensor) -> int:
    """Floating-point operations of the matrix products in one step, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        loss(model, inputs).backward()
    return counter.get_total_flops()


def loss(model: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
    """The loss of a GPT; of any other module the sum of its result."""
    outputs = model(*inputs)
    return outputs[1] if isinstance(outputs, tuple) else outputs.sum()


@dataclass(frozen=True)
class Trial:
    """A small GPT and a batch of each rank's own, to be tried in several ways; attention written out.

    Args:
        layers: Blocks, L.
        hidden: Width of the residual stream, h.
        heads: Attention heads, a.
        batch: Sequences, b.
        sequence: Tokens in a sequence, s.
        vocabulary: Number of different tokens, V.
    """

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

    def gpt(self, how: How = nothing, dropout: float = 0.0, attention: AttentionKind = "plain") -> GPT:
        """The GPT, the same each time, with `how` done to it."""
        sizes = (self.vocabulary, self.sequence, self.layers, self.hidden, self.heads)
        gpt = GPT(GPTConfig(*sizes, dropout=dropout, attention=attention), seed=0).to(self.world.device)
        how(gpt)
        return gpt

    def tokens(self) -> tuple[Tensor, Tensor]:
        """This rank's inputs and targets."""
        generator = torch.Generator().manual_seed(self.world.rank)
        shape = (2, self.batch, self.sequence)
        inputs, targets = torch.randint(self.vocabulary, shape, generator=generator).to(self.world.device)
        return inputs.clone(), targets.clone()  # each with memory of its own, since they are not kept equally long

    def step(self, how: How = nothing, dropout: float = 0.0, attention: AttentionKind = "plain") -> Step:
        """One step of it."""
        return measure(self.gpt(how, dropout, attention), *self.tokens())

    def operations(self, how: How = nothing) -> int:
        """Operations of one step of it."""
        return operations(self.gpt(how), *self.tokens())

    def one_more_block(self, how: How, predicted: int, formula: str, random: bool = True) -> Claim:
        """The claim on what one more block adds to the allocator's peak of a step; see `one_more`."""
        fewer, more = (replace(self, layers=layers).gpt(how) for layers in (self.layers, self.layers + 1))
        return one_more((fewer, *self.tokens()), (more, *self.tokens()), predicted, formula, random)

    def timed(self, what: str, how: How) -> None:
        """Note the seconds of a step; a first one is not counted."""
        gpt, tokens = self.gpt(how), self.tokens()
        loss(gpt, tokens).backward()
        with self.world.timed(f"a step, {what}"):
            loss(gpt, tokens).backward()


def unlike(step: Step, other: Step) -> int:
    """How many elements of all gradients are not the same number."""
    pairs = zip(step.gradients, other.gradients, strict=True)
    return sum(int((mine != its).sum()) for mine, its in pairs)


def same(trial: Trial, ours: dict[str, How], theirs: dict[str, How] | None = None) -> list[Claim]:
    """Claims that gradients have the bits that they have without recomputation, and that random numbers go on alike.

    With dropout. Each product, sum and random number of the second call has the operands of the first, in the same
    order, and each parameter gets one gradient; so nothing can round in another way.

    Args:
        trial: The GPT.
        ours: Ways of this chapter, by name.
        theirs: Further ways, whose gradients are compared, too.
    """
    plain, formula = trial.step(dropout=DROPOUT), "g = g_kept"
    gradients, following = {}, {}
    for name, how in {**ours, **(theirs or {})}.items():
        found = trial.step(how, dropout=DROPOUT)
        gradients[name] = Claim("", formula, 0, unlike(found, plain), "elements", "derived", "compared")
        if name in ours:
            following[name] = Claim("", "r", plain.following, found.following, source="derived", how="compared")
    names = ", ".join(ours)
    return [
        fold(f"{names}: elements of gradients that differ from those without recomputation", gradients, key=True),
        fold(f"{names}: next random number after the step, as without recomputation", following),
    ]


def allocated(model: nn.Module, *inputs: Tensor) -> int:
    """The most bytes that the allocator gave at once in one step, above what was held before; gradients exist."""
    loss(model, inputs).backward()
    with Peak(inputs[0].device) as peak:
        loss(model, inputs).backward()
    return peak.bytes


def one_more(fewer: tuple[Any, ...], more: tuple[Any, ...], predicted: int, formula: str, random: bool = True) -> Claim:
    """The claim on what a deeper model adds to the allocator's peak, which also sees what is kept outside of autograd.

    In the worst moment of a step, both do the same; the deeper one holds what one more block or segment keeps. Where it
    is recomputed that includes torch's random state on the CPU, R bytes, which is kept on the side.

    Args:
        fewer: A model and its inputs.
        more: A deeper model and its inputs.
        predicted: Bytes of the tensors that are kept.
        formula: For these.
        random: Whether the random state is kept with them.
    """
    device = fewer[1].device
    state = torch.get_rng_state().nbytes if random and device.type == "cpu" else 0
    measured = allocated(*more) - allocated(*fewer)
    slack = 0 if device.type == "cpu" else 512 * 20  # a GPU's allocator rounds each tensor up
    return Claim(
        "", f"{formula} + R" if random else formula, predicted + state, measured, "B", "derived", absolute=slack
    )


def sees_a_difference(trial: Trial, how: How, broken: How) -> Claim:
    """The claim that the comparison above fails where it should: here random numbers are not drawn again."""
    different = unlike(trial.step(how, dropout=DROPOUT), trial.step(broken, dropout=DROPOUT))
    what = "elements of gradients that differ, if the random state is not restored"
    return Claim(what, "some", 1, different, source="derived", how="compared", relation=">=")


def trade(points: dict[str, tuple[int, int]]) -> Figure:
    """Work against memory: one point (most bytes at once, operations) for each way, relative to the first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    first = next(iter(points.values()))
    markers = "osD^vPX*"
    for number, (name, (peak, operations)) in enumerate(points.items()):
        memory, work = 100 * peak / first[0], 100 * operations / first[1]
        axes.plot(memory, work, markers[number % len(markers)], markersize=9, label=name)
        axes.annotate(name, (memory, work), xytext=(8, 6), textcoords="offset points")
    box = {"boxstyle": "larrow,pad=0.3", "fc": "#EEEEEE", "ec": "#999999"}
    axes.text(8, 101, "better", rotation=40, fontsize=9, color="#333333", ha="left", va="bottom", bbox=box)
    axes.set_xlim(0, 125)
    axes.set_ylim(98, 136)
    axes.set_xlabel("most bytes kept at once, % of keeping everything")
    axes.set_ylabel("operations of a step, %")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def over_time(steps: dict[str, Step]) -> Figure:
    """The bytes that autograd keeps during a step, one line for each way."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for (name, step), style in zip(steps.items(), ("-", "--", "-.", ":") * len(steps), strict=False):
        axes.plot([held / 1e3 for held in step.history], style, drawstyle="steps-post", label=name)
    axes.set_xlabel("tensors kept or dropped so far, from the beginning of forward to the end of backward")
    axes.set_ylabel("kept for backward, kB")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
