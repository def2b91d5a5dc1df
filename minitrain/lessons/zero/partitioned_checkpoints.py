"""The demo of `partitioned_checkpoints`: bytes kept on each rank, what gathering sends, and that no bit changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.collectives import ring
from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.comm.messages import Group, Handle
from minitrain.costs import partitioned_checkpoints as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.tensor_parallel import attention as lesson_attention
from minitrain.lessons.zero import small
from minitrain.lessons.zero.offload import Crossings
from minitrain.recomputation.checkpoint import recompute
from minitrain.tensor_parallel import mappings
from minitrain.tensor_parallel.attention import ParallelAttention, ParallelMLP
from minitrain.zero import partitioned_checkpoints as technique

PAPER = "Rajbhandari et al. 2020"
Blocks = list[nn.Module]
How = Callable[[Blocks], None]
HOWS: dict[str, How] = {"device": technique.partition, "host": partial(technique.partition, host=True)}


def nothing(blocks: Blocks) -> None:
    """Leave the blocks as they are: autograd keeps all that it needs."""


class Trial:
    """A few tensor-parallel blocks of the GPT, their input, and the gradient of their output, the same on all ranks."""

    def __init__(self, world: World, layers: int, sequence: int, batch: int):
        self.world, self.layers = world, layers
        self.sizes = lesson_attention.config(world, sequence, head_size=4)
        self.x, self.gradient = lesson_attention.inputs(world, self.sizes, batch, torch.float32)
        self.elements = self.x.numel()

    def blocks(self) -> Blocks:
        made: Blocks = []
        for _ in range(self.layers):
            block = lesson_attention.block(self.world, self.sizes, torch.float32)
            block.attention, block.mlp = ParallelAttention(block.attention), ParallelMLP(block.mlp)  # type: ignore[assignment]
            made.append(block)
        return made


class Odd(Trial):
    """Blocks whose input no number of ranks but 1 and 3 divides: every rank has all of them."""

    def __init__(self, world: World, layers: int):
        self.world, self.layers = world, layers
        generator = torch.Generator().manual_seed(2)
        drawn = torch.randn(2, 3, small.WIDTH, generator=generator)
        self.x, self.gradient = drawn.to(world.device)
        self.elements = self.x.numel()

    def blocks(self) -> Blocks:
        return list(small.chain(self.world))[: self.layers]


class Step:
    """A forward and a backward: bytes that autograd kept in between, and all gradients.

    Attributes:
        kept: Bytes for backward after forward, by where they are, "device" and "host".
        out: Bytes copied to the host.
        back: Bytes copied from the host.
        gradients: Of the input and of all parameters.
    """

    def __init__(self, trial: Trial, how: How):
        blocks = trial.blocks()
        how(blocks)
        x = trial.x.clone().requires_grad_()
        saved: list[Tensor] = []

        def keep(tensor: Tensor) -> Tensor:
            saved.append(tensor)
            return tensor

        y = x
        with Crossings([]) as crossings:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                for block in blocks:
                    y = block(y)
            on_host = [tensor for tensor in saved if crossings._on_host(tensor)]
            on_device = [tensor for tensor in saved if not crossings._on_host(tensor)]
            self.kept = {"device": storage_bytes(on_device), "host": storage_bytes(on_host)}
            y.backward(trial.gradient)
        self.out, self.back = crossings.out, crossings.back
        self.gradients: list[Any] = [x.grad, *(p.grad for block in blocks for p in block.parameters())]


def kept(trials: dict[str, Trial]) -> list[Claim]:
    """Claims on the bytes kept in each memory, and on those that cross to the host and back."""
    held, crossed = {}, {}
    for name, trial in trials.items():
        expected = costs.kept(trial.layers, 1, 1, trial.elements, trial.world.size, 4)
        for where, how in HOWS.items():
            step = Step(trial, how)
            for memory in HOWS:
                predicted = expected if memory == where else 0
                claim = Claim("", "L · w⌈bsh/t⌉", predicted, step.kept[memory], "B", f"{PAPER}, §6.1")
                held[f"{name}, for the {where}, on the {memory}"] = claim
            predicted = expected if where == "host" else 0
            for way, measured in (("out", step.out), ("back", step.back)):
                case = f"{name}, kept on the {where}, {way}"
                crossed[case] = Claim("", "L · w⌈bsh/t⌉", predicted, measured, "B", f"{PAPER}, §6.1")
    # The case that tables show is the one with bytes.
    crossed = dict(sorted(crossed.items(), key=lambda item: -item[1].predicted))
    return [
        fold("bytes of checkpoints on the device, or on the host, after forward", held, key=True),
        fold("bytes copied to the host in forward, and back in backward (0 without the host)", crossed, key=True),
    ]


@contextmanager
def through_rings() -> Iterator[None]:
    """Have the rings of chapter 01 carry the two collectives, so that a ledger sees every byte."""
    before = mappings.all_reduce, technique.all_gather

    def all_reduce(tensor: Tensor, group: Group = None) -> Handle:
        return Handle((), ring.all_reduce(tensor, group))

    def all_gather(shard: Tensor, group: Group = None, into: Any = None) -> Handle:
        return Handle((), ring.all_gather(into, group))

    mappings.all_reduce, technique.all_gather = all_reduce, all_gather  # type: ignore[assignment]
    try:
        yield
    finally:
        mappings.all_reduce, technique.all_gather = before


def sent(trial: Trial) -> list[Claim]:
    """Claims on what a step sends more than one that keeps whole checkpoints, and on how much more that is."""
    world, source = trial.world, f"{PAPER}, §8"
    whats = "bytes sent by this rank to gather checkpoints, in a step", "these, over what the blocks' all-reduces send"
    formulas = "L · (t−1)/t · wbsh", "1 / (2 · 6)"
    if world.size == 1:
        return [Claim.needs_ranks(2, *pair, source, key=True) for pair in zip(whats, formulas, strict=True)]
    totals = {}
    for name, how in {"whole": recompute, **HOWS}.items():
        with through_rings(), Ledger() as ledger:
            Step(trial, how)
        totals[name] = ledger.sent
    predicted = costs.gathers(trial.layers, trial.elements, 4, world.size, world.rank).bytes
    everything = costs.all_reduces(trial.layers, trial.elements, 4, world.size, world.rank).bytes
    more = {
        f"kept on the {where}": Claim("", formulas[0], predicted, totals[where] - totals["whole"], "B", source)
        for where in HOWS
    }
    share = (totals["device"] - totals["whole"]) / totals["whole"]
    return [
        fold(whats[0], more, key=True),
        Claim(whats[1], formulas[1], costs.overhead(), share, "1", source, tolerance=1e-12, key=True),
        Claim("bytes sent by this rank without it", "6L · 2(t−1)/t · wbsh", everything, totals["whole"], "B", source),
    ]


def same(trials: dict[str, Trial]) -> Claim:
    """The claim that gradients are those of blocks of which autograd keeps everything, to the last bit."""
    cases = {}
    for name, trial in trials.items():
        right = Step(trial, nothing).gradients
        for where, how in HOWS.items():
            found = Step(trial, how).gradients
            different = sum(int((one != other).sum()) for one, other in zip(found, right, strict=True))
            claim = Claim("", "∇ = ∇ of kept activations", 0, different, "elements", "derived", "compared")
            cases[f"{name}, kept on the {where}"] = claim
    return fold("elements of gradients that differ from those without recomputation", cases, key=True)


def demo(world: World, layers: int = 3, sequence: int = 6, batch: int = 2) -> list[Claim]:
    """Divides the inputs of recomputed blocks over tensor-parallel ranks; the table shows bytes kept and sent.

    Args:
        layers: Blocks.
        sequence: Tokens in a sequence.
        batch: Sequences.
    """
    trials = {"a GPT's blocks": Trial(world, layers, sequence, batch), "an input with a remainder": Odd(world, layers)}
    first = trials["a GPT's blocks"]
    claims = [*kept(trials), *sent(first), same(trials)]
    with world.timed("forward and backward, checkpoints partitioned"):
        Step(first, technique.partition)
    return claims
