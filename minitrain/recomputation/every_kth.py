"""Recomputation in segments: of every k-th block the input is kept, and k blocks are computed again together.

**Idea.** Keep fewer inputs, one for a segment of k blocks. Backward then computes k blocks again at once and holds all
they keep. Long segments make the first part small, short ones the second; between them is a best k. Where a layer keeps
nothing but its input it is √L, and L layers fit into the memory of 2√L.

**Source.** Chen et al. 2016, "Training deep nets with sublinear memory cost", §4.1 and §4.3.

**What each rank holds.** Between forward and backward ⌈L/k⌉ inputs; in backward also what k blocks keep.

**What is sent, when and why.** Nothing for recomputation's sake. A block that communicates in its forward communicates
again when it is computed again.

**Cost.** `minitrain.costs.recomputation`: `kept_by_segments`, `peak_of_segments`, the best k by `best_k`, nearly
√(L · input/block). Each block's forward is done once more, whatever k is. A transformer's block keeps 16 times its
input, so single blocks (`full`) are best up to 32 of them: the root counts from there on.

**Also called.** Sublinear memory, checkpointing every k layers; Megatron-LM's `uniform` method.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from minitrain.costs import recomputation as costs
from minitrain.recomputation import lesson
from minitrain.recomputation.checkpoint import checkpoint
from minitrain.recomputation.full import check
from minitrain.runtime import Claim, World, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def recompute(blocks: Iterable[nn.Module], k: int, checkpoint: Callable[..., Any] = checkpoint) -> None:
    """Have each segment of k consecutive blocks keep its input only. Works in place; names stay as they are.

    The call of a segment's first block runs all of its blocks, the calls of the others hand on what they are given. So
    the model must call the blocks one straight after another, each with the result of the one before and the same
    further arguments. A block's own hooks are called inside, in forward and again when the segment is computed again:
    ZeRO-3 with blocks for units finds each block's calls as they happen.

    Args:
        blocks: Modules in the order in which they are called, each from a tensor to a tensor. `gpt.blocks`, say.
        k: Blocks in a segment. The last segment takes what is left; 1 is as `full`.
        checkpoint: Calls a function and keeps its arguments, as in `full.recompute`.

    Raises:
        ValueError: There is no block, one is recomputed already or stands there twice, or k is less than 1.

    Source: Chen et al. 2016, §4.1.
    """
    chosen = list(blocks)
    check(chosen)
    if len(set(chosen)) < len(chosen):
        raise ValueError("blocks has the same block twice, which cannot belong to two segments; use full.recompute")
    if k < 1:
        raise ValueError(f"k={k} must be at least 1; about √{len(chosen)} is usual")
    for first in range(0, len(chosen), k):
        Segment(chosen[first : first + k], checkpoint)


class Chain(nn.Module):
    """The blocks of a segment, called one after another."""

    def __init__(self, blocks: list[nn.Module]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.calls = [block._call_impl for block in blocks]  # what calling them does now, hooks included

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        for number, call in enumerate(self.calls):
            x = call(x, *args, **kwargs)
            if not isinstance(x, Tensor):
                name = type(self.blocks[number]).__name__
                raise TypeError(f"{name} returns {type(x).__name__}; every_kth needs blocks from a tensor to a tensor")
        return x


class Segment:
    """Consecutive blocks as one checkpoint; takes over what calling each of them does."""

    def __init__(self, blocks: list[nn.Module], checkpoint: Callable[..., Any]):
        self.chain, self.checkpoint = Chain(blocks), checkpoint
        self.next = 0  # the block that the model should call next
        self.result: Callable[[], Tensor | None] = lambda: None
        self.rest: list[Any] = []  # the further arguments
        for number, block in enumerate(blocks):
            # Not its forward, around which the block's hooks would see what is only handed on.
            block._call_impl = partial(self.call, number)

    def call(self, number: int, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """What the model's call of block `number` does."""
        rest = tree_leaves((args, kwargs))
        if number == 0:
            result = self.checkpoint(self.chain, x, *args, **kwargs)
            self.next, self.result = 1, weakref.ref(result)
            self.rest = rest if len(self.chain.calls) > 1 else []
            return result
        if number != self.next or x is not self.result() or not same_things(rest, self.rest):
            raise RuntimeError(
                f"block {number} of a segment was not called straight after block {number - 1}, with its result and "
                "the same further arguments; every_kth needs that, full.recompute does not"
            )
        self.next += 1
        if self.next == len(self.chain.calls):
            self.rest = []  # keeps no tensor longer than needed
        return x


def same_things(these: list[Any], those: list[Any]) -> bool:
    """Whether arguments are the same tensors, and else equal."""
    return len(these) == len(those) and all(
        mine is its or not isinstance(mine, Tensor) and mine == its for mine, its in zip(these, those, strict=True)
    )


def demo(world: World, layers: int = 36, hidden: int = 32, batch: int = 2, sequence: int = 16) -> list[Claim]:
    """Recomputes segments of k layers for many k; the table shows bytes kept, at once too, and which k is best.

    Args:
        layers: Layers of a plain chain, and blocks of a GPT.
        hidden: Their width.
        batch: Sequences in each rank's batch.
        sequence: Tokens in a sequence.
    """
    trial = lesson.Trial(world, layers, hidden, 1, batch, sequence)
    lengths = sorted({-(-layers // segments) for segments in range(1, layers + 1)})
    chain = {k: chain_step(trial, k) for k in lengths}
    gpt = {k: trial.step(in_segments(k)) for k in lengths if k <= 3}
    world.figure(lambda: draw(chain, gpt, trial))

    width = 4 * batch * sequence * hidden  # S: bytes of what goes from layer to layer
    source, root = f"{lesson.CHEN}, §4.3", min(lengths, key=lambda k: abs(k - layers**0.5))
    claims = []
    for name, k in (("k = 1", 1), ("k near √L", root), ("k = L", layers)):
        kept, peak = costs.kept_by_segments(layers, k, width), costs.peak_of_segments(layers, k, width, width)
        what = f"linear layers, {name}"
        claims += [
            Claim(f"bytes kept after forward, {what}", "⌈L/k⌉ · S", kept, chain[k].kept, "B", source),
            Claim(
                f"most bytes kept at once, {what}",
                "max (j − 1 + kⱼ) · S ≈ (L/k + k) · S",
                peak,
                chain[k].peak,
                "B",
                source,
            ),
        ]
    off = [abs(step.peak - costs.peak_of_segments(layers, k, width, width)) for k, step in chain.items()]
    what = f"most bytes kept at once: largest difference from the formula, of {len(lengths)} lengths k"
    claims.append(Claim(what, "0", 0, max(off), "B", source))

    predicted = {k: costs.gpt_peak(*trial.sizes, k, fused=False) for k in gpt}
    best, found = (min(peaks, key=peaks.__getitem__) for peaks in (predicted, {k: gpt[k].peak for k in gpt}))
    formula = "4(⌈L/k⌉ − 1)bsh + k blocks + 8(bs + s)"
    return [
        *claims,
        Claim(
            "most bytes kept at once, blocks of a GPT, best k", formula, predicted[best], gpt[found].peak, "B", source
        ),
        Claim("best k, blocks of a GPT, of 1, 2 and 3", "near √(L · input/block)", best, found, "1", source),
        again(trial, best),
        *lesson.same(trial, in_segments(best), {}),
    ]


def chain_step(trial: lesson.Trial, k: int) -> lesson.Step:
    """A step of a chain of linear layers in segments of k; each keeps its input and nothing else."""
    hidden, device = trial.hidden, trial.world.device
    chain = nn.Sequential(*(nn.Linear(hidden, hidden) for _ in range(trial.layers))).to(device)
    recompute(chain, k)
    return lesson.measure(chain, torch.randn(trial.batch, trial.sequence, hidden, device=device))


def in_segments(k: int) -> lesson.How:
    """Keep the input of every k-th block only."""
    return lambda gpt: recompute(gpt.blocks, k)


def again(trial: lesson.Trial, k: int) -> Claim:
    """The claim that segments cost what single blocks do."""
    predicted = trial.layers * costs.layer_flops(trial.batch, trial.sequence, trial.hidden)
    measured = trial.operations(in_segments(k)) - trial.operations()
    what, formula = "operations done again: the blocks' forward, whatever k is", "L(24bsh² + 4bs²h)"
    return Claim(what, formula, predicted, measured, source=f"{lesson.KORTHIKANTI}, appendix A")


def draw(chain: dict[int, lesson.Step], gpt: dict[int, lesson.Step], trial: lesson.Trial) -> Figure:
    """The most bytes kept at once over k: what was counted, and the formula's line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    every = range(1, trial.layers + 1)
    width = 4 * trial.batch * trial.sequence * trial.hidden
    line = [costs.peak_of_segments(trial.layers, k, width, width) / 1e3 for k in every]
    left.plot(every, line, "-", color="#999999", label="formula")
    left.plot(list(chain), [step.peak / 1e3 for step in chain.values()], "o", label="counted: most at once")
    left.plot(list(chain), [step.kept / 1e3 for step in chain.values()], "x", label="counted: after forward")
    left.set_title(f"{trial.layers} linear layers, each keeps its input", fontsize=10)
    few = range(1, min(6, trial.layers) + 1)
    line = [costs.gpt_peak(*trial.sizes, k, fused=False) / 1e3 for k in few]
    right.plot(few, line, "-", color="#999999")
    right.plot(list(gpt), [step.peak / 1e3 for step in gpt.values()], "o")
    right.plot(list(gpt), [step.kept / 1e3 for step in gpt.values()], "x")
    right.set_title(f"{trial.layers} blocks of a GPT, each keeps 16 times its input", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("k, layers in a segment")
        axes.set_ylabel("kB")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


if __name__ == "__main__":
    run(demo)
