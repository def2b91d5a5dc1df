"""The trainer's step in each layout that the ranks allow, against the same layout of torch's parts on the same ranks.

On one GPU it is GPT-2 in bfloat16, with and without `torch.compile`, against the same model in plain PyTorch with
autocast; tokens per second and model FLOP utilization follow from the seconds, and are printed by the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minitrain.benchmarks.compare import Comparison, by_both_clocks, interleaved
from minitrain.benchmarks.torch_step import SCHEDULES, TorchStep
from minitrain.comm.world import World
from minitrain.composition.settings import Layout, Model, Settings, Steps, problem
from minitrain.data.text import Samples, Text
from minitrain.train import build, train_step

CPU = Model(preset="tiny", positions=128, tied=False)
GPU = Model(preset="gpt2", tied=False)


def measure(world: World, model: Model | None = None, batch: int = 16, repeats: int = 15) -> list[Comparison]:
    """Compare steps: forward, backward, sums over ranks, clipping, AdamW; `batch` is that of all ranks together."""
    gpu = world.device.type == "cuda"
    model = model or (GPU if gpu else CPU)
    steps = Steps(batch=batch, dtype="bfloat16" if gpu else "float32", warmup=0)
    samples = Samples(Text.load().training, model.sizes.positions)
    rows = []
    layouts = _settings(world.size, model, steps)
    if gpu and world.backend == "gloo":  # ranks that share a GPU: torch's pipelining does not stage messages on the CPU
        layouts = {name: each for name, each in layouts.items() if each.layout.pp == 1}
    for name, settings in world.progress(layouts.items(), f"layouts of {world.size} ranks", total=len(layouts)):
        theirs = TorchStep(world, settings, samples)
        medians = interleaved(world, {"ours": _ours(world, settings, samples), "theirs": theirs}, repeats)
        what = f"a step of {model.preset}, {batch} sequences, {world.size} ranks, {name}"
        against = f"{theirs.name} ({world.backend})" if world.size > 1 else theirs.name
        most = None if gpu else _most(settings.layout)
        cost, speed = by_both_clocks(what, medians["ours"], medians["theirs"], against, most)
        rows += [cost, replace(speed, target=0.95 if gpu else None)]
    return rows


def _most(layout: Layout) -> float:
    """The largest acceptable ratio of CPU times."""
    if sum(ranks > 1 for ranks in (layout.dp, layout.tp, layout.pp)) > 1:
        return 0.95
    if layout.tp > 1:
        return 0.8
    return {0: 1.02, 1: 1.0}.get(layout.zero, 0.9) if layout.dp > 1 else 1.0


def _settings(ranks: int, model: Model, steps: Steps) -> dict[str, Settings]:
    """The layouts to compare, by name: one axis each, two, and each with what is usually added to it."""
    chosen = {
        f"dp{ranks}": Layout(dp=ranks),
        f"dp{ranks}, ZeRO 1": Layout(dp=ranks, zero=1),
        f"dp{ranks}, ZeRO 2": Layout(dp=ranks, zero=2),
        f"dp{ranks}, ZeRO 3": Layout(dp=ranks, zero=3),
        f"tp{ranks}": Layout(tp=ranks),
        f"tp{ranks}, sequence parallel": Layout(tp=ranks, sequence_parallel=True),
        **{f"pp{ranks}, {name}": Layout(pp=ranks, microbatches=2 * ranks, schedule=name) for name in SCHEDULES},
    }
    if ranks == 1:
        chosen = {"one device": Layout()}
    elif ranks % 2 == 0 and ranks > 2:
        half = ranks // 2
        chosen[f"dp{half}×tp2"] = Layout(dp=half, tp=2)
        chosen[f"dp{half}×pp2"] = Layout(dp=half, pp=2, microbatches=4)
        chosen[f"pp2×tp{half}"] = Layout(pp=2, tp=half, microbatches=4)
    fit = {name: Settings(model, layout, steps) for name, layout in chosen.items()}
    fit = {name: each for name, each in fit.items() if problem(model, each.layout, steps, ranks) is None}
    if steps.dtype == "bfloat16":
        compiled = replace(steps, compile=True)
        first = next(iter(fit))
        fit[f"{first}, compiled"] = replace(fit[first], steps=compiled)
    return fit


def _ours(world: World, settings: Settings, samples: Samples) -> Callable[[], object]:
    training = build(settings, world.device)
    training.gradients.overlap(training.part)  # as the trainer does
    return lambda: train_step(training, 0, 0, samples)
