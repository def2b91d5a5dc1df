"""The lesson of `minitrain.recomputation.every_kth`: what its demo claims, and how that is measured."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median_low
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.costs import recomputation as costs
from minitrain.costs.memory import gpt_layer_activations
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.recomputation import common as lesson
from minitrain.models.gpt import GPT
from minitrain.recomputation import every_kth
from minitrain.recomputation.full.every_kth import recompute

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    chains = {wide: {k: chain_step(trial, k, wide) for k in lengths} for wide in (1, 4)}
    gpt = {k: trial.step(in_segments(k)) for k in lengths if k <= 3}
    world.figure(lambda: draw(chains[1], gpt, trial))
    forms = {"small form": two_blocks, "full form": in_segments(2)}
    return [
        *chain_claims(trial, chains),
        allocator(trial, forms),
        *gpt_claims(trial, gpt),
        again(trial, forms),
        *lesson.same(trial, forms),
    ]


def chain_claims(trial: lesson.Trial, chains: dict[int, dict[int, lesson.Step]]) -> list[Claim]:
    """Claims on chains of linear layers that keep their input, or four times as much: bytes, and the best k."""
    layers, source = trial.layers, f"{lesson.CHEN}, §4.3"
    width = 4 * trial.batch * trial.sequence * trial.hidden  # I: bytes of what goes from layer to layer
    root = min(chains[1], key=lambda k: abs(k - layers**0.5))
    small, x = InSegments(nn.ModuleList(chain(trial, layers)), root), trial_input(trial).requires_grad_()
    steps = [("small form", 1, root, lesson.measure(small, x))]
    steps += [("full form", wide, k, step) for wide, its in chains.items() for k, step in its.items()]
    kept, most = {}, {}
    for form, wide, k, step in steps:
        case = f"{form}, A = {wide}I, k = {k}"
        after = costs.kept_by_segments(layers, k, width)
        kept[case] = Claim("", "⌈L/k⌉ · I", after, step.kept, "B", source)
        peak = costs.peak_of_segments(layers, k, width, wide * width)
        most[case] = Claim("", "max over j of (j − 1)I + kⱼA", peak, step.peak, "B", source)
    best, least = {}, {}
    for wide, its in chains.items():
        smallest = min(step.peak for step in its.values())
        found = median_low(k for k, step in its.items() if step.peak == smallest)
        estimate = costs.best_k_estimate(layers, width, wide * width)
        best[f"A = {wide}I"] = Claim("", "√(L · I/A)", estimate, found, "1", source, absolute=0.5)
        bound = 2 * math.sqrt(layers * width * wide * width) - width
        least[f"A = {wide}I"] = Claim("", "2√(L · I · A) − I", bound, smallest, "B", source, tolerance=0.05)
    what = "linear layers in segments, k near √L, and all other lengths"
    return [
        fold(f"small and full form: bytes kept after forward, {what}", kept, key=True),
        fold(f"small and full form: most bytes kept at once, {what}", most, key=True),
        fold("best k, linear layers that keep A bytes, of which I are their input", best, key=True),
        fold("most bytes kept at once with the best k, the same layers", least),
    ]


def gpt_claims(trial: lesson.Trial, steps: dict[int, lesson.Step]) -> list[Claim]:
    """Claims on a GPT's blocks in segments: the most bytes at once, and for how many blocks the best k is 1."""
    source, formula = f"{lesson.CHEN}, §4.3", "4(⌈L/k⌉ − 1)bsh + k blocks + 8(bs + s)"
    most = {
        f"k = {k}": Claim("", formula, costs.gpt_peak(*trial.sizes, k, fused=False), step.peak, "B", source)
        for k, step in sorted(steps.items(), key=lambda item: item[1].peak)
    }
    batch, sequence, hidden, heads, *_ = trial.sizes
    block = sum(gpt_layer_activations(batch, sequence, hidden, heads, fused=False).values())
    width, best = 4 * batch * sequence * hidden, {}
    few = int(2 * block / width) // 2 * 2  # to which single blocks are best
    for layers in (trial.layers, few, few + 1):
        its = replace(trial, layers=layers)
        found = steps if layers == trial.layers else {k: its.step(in_segments(k)) for k in (1, 2)}
        predicted, measured = costs.best_k(layers, width, block), min(found, key=lambda k: found[k].peak)
        best[f"L = {layers}"] = Claim("", "1 up to L = 2A/I", predicted, measured, "1", source)
    return [
        fold("most bytes kept at once, blocks of a GPT in segments, best k; and the other lengths", most),
        fold("best k, blocks of a GPT, of 1, 2 and 3", best, key=True),
    ]


def allocator(trial: lesson.Trial, forms: dict[str, lesson.How]) -> Claim:
    """The claim on what one more segment of two blocks adds to the allocator's peak."""
    few = replace(trial, layers=4)
    width, cases = 4 * trial.batch * trial.sequence * trial.hidden, {}
    for name, how in forms.items():
        fewer, more = few.gpt(how), replace(few, layers=6).gpt(how)
        cases[name] = lesson.one_more((fewer, *few.tokens()), (more, *few.tokens()), width, "4bsh")
    return fold("bytes that one more segment of two blocks adds to the allocator's peak of a step", cases)


def two_blocks(gpt: GPT) -> None:
    """The small form, k = 2."""
    gpt.blocks = nn.ModuleList([InSegments(gpt.blocks, 2)])


class InSegments(nn.Module):
    """Blocks that are called by the small form."""

    def __init__(self, blocks: nn.ModuleList, k: int):
        super().__init__()
        self.blocks, self.k = blocks, k

    def forward(self, x: Tensor) -> Tensor:
        return every_kth.run_in_segments(self.blocks, x, self.k)


def chain(trial: lesson.Trial, layers: int, wide: int = 1) -> list[nn.Module]:
    """Layers that keep their input; or, four times as much, one that is three times as wide inside."""
    hidden = trial.hidden
    if wide == 1:
        return [nn.Linear(hidden, hidden).to(trial.world.device) for _ in range(layers)]
    inner = (wide - 1) * hidden
    pairs = (nn.Sequential(nn.Linear(hidden, inner), nn.Linear(inner, hidden)) for _ in range(layers))
    return [pair.to(trial.world.device) for pair in pairs]


def chain_step(trial: lesson.Trial, k: int, wide: int = 1) -> lesson.Step:
    """A step of a chain of linear layers in segments of k; each keeps `wide` times its input."""
    layers = nn.Sequential(*chain(trial, trial.layers, wide))
    recompute(layers, k)
    return lesson.measure(layers, trial_input(trial))


def trial_input(trial: lesson.Trial) -> Tensor:
    """What goes into a chain."""
    return torch.randn(trial.batch, trial.sequence, trial.hidden, device=trial.world.device)


def in_segments(k: int) -> lesson.How:
    """Keep the input of every k-th block only."""
    return lambda gpt: recompute(gpt.blocks, k)


def again(trial: lesson.Trial, forms: dict[str, lesson.How]) -> Claim:
    """The claim that segments cost what single blocks do."""
    predicted, once = trial.layers * costs.layer_flops(trial.batch, trial.sequence, trial.hidden), trial.operations()
    formula, source = "L(24bsh² + 4bs²h)", f"{lesson.KORTHIKANTI}, appendix A"
    ways = {**forms, "full form, k = 3": in_segments(3)}
    cases = {
        name: Claim("", formula, predicted, trial.operations(how) - once, source=source) for name, how in ways.items()
    }
    return fold("operations done again: the blocks' forward, whatever k is", cases, key=True)


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
    right.set_title(f"{trial.layers} blocks of a GPT, each keeps about 17 times its input", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("k, layers in a segment")
        axes.set_ylabel("kB")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure
