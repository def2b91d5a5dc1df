"""The lesson of `minitrain.recomputation.every_kth`: what its demo claims, and how that is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.costs import recomputation as costs
from minitrain.lessons.claims import Claim, as_key
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
    chain = {k: chain_step(trial, k) for k in lengths}
    gpt = {k: trial.step(in_segments(k)) for k in lengths if k <= 3}
    world.figure(lambda: draw(chain, gpt, trial))

    width = 4 * batch * sequence * hidden  # S: bytes of what goes from layer to layer
    source, root = f"{lesson.CHEN}, §4.3", min(lengths, key=lambda k: abs(k - layers**0.5))
    claims = small_form(trial, root)
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
        Claim("best k, blocks of a GPT, of 1, 2 and 3", "near √(L · input/block)", best, found, "1", source, key=True),
        *as_key(again(trial, best)),
        *lesson.same(trial, in_segments(best), {}),
    ]


def small_form(trial: lesson.Trial, root: int) -> list[Claim]:
    """Claims on the small form: bytes kept by a chain of layers with k near √L, and a GPT's gradients with k = 2."""
    width, source, form = 4 * trial.batch * trial.sequence * trial.hidden, f"{lesson.CHEN}, §4.3", "small form: "
    kept = costs.kept_by_segments(trial.layers, root, width)
    peak = costs.peak_of_segments(trial.layers, root, width, width)

    def two_blocks(gpt: GPT) -> None:
        gpt.blocks = nn.ModuleList([InSegments(gpt.blocks, 2)])

    hidden, device = trial.hidden, trial.world.device
    x = torch.randn(trial.batch, trial.sequence, hidden, device=device, requires_grad=True)
    chain = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(trial.layers)).to(device)
    step = lesson.measure(InSegments(chain, root), x)
    what = "linear layers, k near √L"
    return as_key(
        Claim(f"{form}bytes kept after forward, {what}", "⌈L/k⌉ · S", kept, step.kept, "B", source),
        Claim(
            f"{form}most bytes kept at once, {what}",
            "max (j − 1 + kⱼ) · S ≈ (L/k + k) · S",
            peak,
            step.peak,
            "B",
            source,
        ),
        *lesson.same(trial, two_blocks, {"of the full form": in_segments(2)}, f"{form}k = 2, "),
    )


class InSegments(nn.Module):
    """Blocks that are called by the small form."""

    def __init__(self, blocks: nn.ModuleList, k: int):
        super().__init__()
        self.blocks, self.k = blocks, k

    def forward(self, x: Tensor) -> Tensor:
        return every_kth.run_in_segments(self.blocks, x, self.k)


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
