"""The lesson of `minitrain.recomputation.every_kth`: bytes by the length of segments, the best one, and its work."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.costs import recomputation as costs
from minitrain.lessons.pictures import recomputation as pictures
from minitrain.lessons.recomputation import common as lesson
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.gpt import GPT
from minitrain.recomputation import every_kth


def demo(world: World) -> list[Claim]:
    """Recomputes segments of k layers for many k; the table shows bytes kept, at once too, and which k is best."""
    layers, widths = 36, (2, 16, 32)  # sequences, tokens, width
    rows, trial = Rows(f"{lesson.CHEN}, §4.3"), lesson.Trial(world, layers, widths[2], 1, *widths[:2])
    width = 4 * math.prod(widths)  # I: bytes of what goes from layer to layer
    lengths, chains = sorted({-(-layers // segments) for segments in range(1, layers + 1)}), {}
    for wide in (1, 4):  # a layer keeps A, so many times its input
        chains[wide] = chain = {k: chain_step(trial, k, wide) for k in lengths}
        what = "linear layers in segments, k near √L, and all other lengths"
        for k, step in sorted(chain.items(), key=lambda each: abs(each[0] - layers**0.5)):
            case = f"A = {wide}I, k = {k}"
            kept = costs.kept_by_segments(layers, k, width)
            rows.add(f"bytes kept after forward, {what}", "⌈L/k⌉ · I", kept, step.kept, case=case)
            peak, formula = costs.peak_of_segments(layers, k, width, wide * width), "max over j of (j − 1)I + kⱼA"
            rows.add(f"most bytes kept at once, {what}", formula, peak, step.peak, case=case)
        estimate, found = costs.best_k_estimate(layers, width, wide * width), least(chain)
        what = "best k, linear layers that keep A bytes, of which I are their input"
        rows.add(what, "√(L · I/A)", estimate, found, "1", case=f"A = {wide}I", absolute=0.5)

    gpt = {k: trial.step(in_segments(k)) for k in lengths if k <= 3}
    again, more = layers * costs.layer_flops(*widths), trial.operations(in_segments(2)) - trial.operations()
    what, source = "operations done again: the blocks' forward, whatever k is", f"{lesson.KORTHIKANTI}, appendix A"
    rows.add(what, "L(24bsh² + 4bs²h)", again, more, "1", source)
    lesson.equal(rows, trial, {"small form": in_segments(2)})
    world.figure(lambda: pictures.segments(chains[1], gpt, trial))
    return rows.claims()


def least(steps: dict[int, lesson.Step]) -> int:
    """The k with the smallest peak; of several the one in the middle, or below it."""
    best = [k for k, step in steps.items() if step.peak == min(each.peak for each in steps.values())]
    return best[(len(best) - 1) // 2]


class InSegments(nn.Module):
    """Blocks that are called by the small form."""

    def __init__(self, blocks: nn.ModuleList, k: int):
        super().__init__()
        self.blocks, self.k = blocks, k

    def forward(self, x: Tensor) -> Tensor:
        return every_kth.run_in_segments(self.blocks, x, self.k)


def in_segments(k: int) -> lesson.How:
    """Keep the input of every k-th block only."""

    def how(gpt: GPT) -> None:
        gpt.blocks = nn.ModuleList([InSegments(gpt.blocks, k)])

    return how


def chain_step(trial: lesson.Trial, k: int, wide: int = 1) -> lesson.Step:
    """A step of a chain in segments of k; each layer keeps its input or, wider inside, `wide` times as much."""
    hidden, inner = trial.hidden, (wide - 1) * trial.hidden
    layers: list[nn.Module] = [nn.Linear(hidden, hidden) for _ in range(trial.layers)]
    if wide > 1:
        layers = [nn.Sequential(nn.Linear(hidden, inner), nn.Linear(inner, hidden)) for _ in layers]
    x = torch.randn(trial.batch, trial.sequence, hidden, device=trial.world.device, requires_grad=True)
    return lesson.measure(InSegments(nn.ModuleList(layers).to(x.device), k), x)
