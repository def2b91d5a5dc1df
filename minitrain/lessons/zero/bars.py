"""A bar for each rank with its bytes, stage by stage, as measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minitrain.collectives.full import ring
from minitrain.comm import Peak, World, model_states
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.costs import memory as memory_costs
from minitrain.costs import zero as costs
from minitrain.data_parallel.full.naive import NaiveDataParallel
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.data_parallel.common import SEQ, small_gpt, tokens
from minitrain.lessons.pictures.memory_bar import LOOKS
from minitrain.lessons.zero import common as lesson
from minitrain.models.gpt import GPT
from minitrain.zero.full.sharded import Sharded
from minitrain.zero.full.stage1 import Zero1
from minitrain.zero.full.stage2 import Zero2

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from minitrain.zero.full.stage3 import Zero3


def activations(held: Iterable[Tensor], run: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes of the storages that autograd keeps for backward, those of `held` left out; and what `run` returned."""
    left_out = {tensor.untyped_storage()._cdata for tensor in held}  # also where stage 3 has taken the memory away
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in left_out:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    return sum(storage.nbytes() for storage in kept.values()), result


Bars = dict[int, list[dict[str, int]]]


def bars(world: World, stage3: type[Zero3], layers: int, hidden: int) -> Bars:
    """What each rank holds, measured, for stages 0 to 3: a GPT in float32 with AdamW.

    Returns:
        By stage and rank, bytes of "parameters", "gradients" and "optimizer states" (when gradients are final),
        "activations" (when forward ends), and the step's "peak" of all together. Sharded stages go through the ring,
        whose buffers count.
    """
    stages: Mapping[int, type[Sharded]] = {1: Zero1, 2: Zero2, 3: stage3}
    found: Bars = {}
    for number in costs.STAGES:
        if number:
            model: Any = lesson.wrap(world, stages[number], layers, hidden, comm=Comm(collectives=ring))
            optimizer = model.optimizer
            held = [line.flat for line in model.lines]
        else:
            model = NaiveDataParallel(small_gpt(world, world.rank, layers, hidden))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            held = list(model.parameters())
        stepped: Any = model if number else optimizer

        def forward(model: Any = model) -> Tensor:
            return model(*tokens(world, world.rank))[1]

        forward().backward()  # a first step makes states and memory for gradients, and learns the order
        model.synchronize()
        stepped.step()
        before = sum(_held(model, optimizer).values())
        if number == 0:
            before -= _held(model, optimizer)["gradients"]  # freed by zero_grad(), where the stages keep their memory
        stepped.zero_grad()
        with lesson.unchecked(), Peak(world.device) as peak:
            kept, loss = activations(held, forward)
            loss.backward()
            model.synchronize()
            mine = _held(model, optimizer) | {"activations": kept}
            stepped.step()
        mine["peak"] = before + peak.bytes
        found[number] = gather_objects(mine)
    return found


def _held(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer states."""
    measured = lesson.held(model) if isinstance(model, Sharded) else model_states(model.module, optimizer)
    return {name: measured[name] for name in lesson.NAMES}


def claims(found: Bars, lines: Sequence[costs.Line], gpt: GPT, rank: int) -> list[Claim]:
    """Claims on this rank's bars: states as the formula says, and activations the same in every stage."""
    config = gpt.config
    kept = memory_costs.gpt_activations(
        2, SEQ, config.hidden, config.heads, config.layers, config.vocabulary, fused=False
    )
    states, activated = {}, {}
    for number in reversed(found):
        mine = found[number][rank]
        predicted = sum(costs.held(number, lines, len(found[number])).values())
        measured = sum(mine[name] for name in lesson.NAMES)
        formula = "Σ of 4Ψ, 4Ψ and 8Ψ, each over n from its stage on"
        states[f"stage {number}"] = Claim("", formula, predicted, measured, "B", f"{lesson.PAPER}, §5")
        source = "Korthikanti et al. 2022, §4.1"
        activated[f"stage {number}"] = Claim("", "L · layer + input + output", kept, mine["activations"], "B", source)
    return [
        fold("bytes of parameters, gradients and optimizer states, stage 3, and so in stages 0 to 2", states),
        fold("bytes of activations, the same in stages 0 to 3", activated),
    ]


def picture(found: Bars) -> Figure:
    """A bar for each rank of what it holds, stage by stage, and a line where its peak was."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    ranks = len(found[0])
    places = {(number, rank): number * (ranks + 1) + rank for number in found for rank in range(ranks)}
    bottoms = dict.fromkeys(places, 0.0)
    for name, (colour, hatch) in LOOKS.items():
        heights = {place: found[place[0]][place[1]][name] / 1e3 for place in places}
        axes.bar(
            list(places.values()),
            list(heights.values()),
            bottom=list(bottoms.values()),
            width=0.85,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            label=name,
        )
        bottoms = {place: bottoms[place] + heights[place] for place in places}
    peaks = [found[number][rank]["peak"] / 1e3 for number, rank in places]
    axes.hlines(peaks, [x - 0.42 for x in places.values()], [x + 0.42 for x in places.values()], "black", label="peak")
    axes.set_xticks([number * (ranks + 1) + (ranks - 1) / 2 for number in found], [f"stage {s}" for s in found])
    axes.set_ylabel("kB on each rank")
    axes.set_title(f"What each of {ranks} rank{'s' * (ranks > 1)} holds, and the peak of a step")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    return figure
