"""Shared by the demos of `model` and `gradients`: parts that are one model's, and gradients that are one device's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minitrain.comm import Peak, World
from minitrain.comm.memory import storage_bytes
from minitrain.composition.layout import make_axes
from minitrain.composition.settings import Layout, Model, Settings, Steps, fitting
from minitrain.composition.step import Instruments
from minitrain.lessons import Claim
from minitrain.lessons.claims import as_key, fold
from minitrain.lessons.composition import common as lesson
from minitrain.planning.plan import predict
from minitrain.tensor_parallel.full.parallelize import piece_of
from minitrain.train import build, make_part

MEGATRON, HEURISTIC = "Shoeybi et al. 2019, §3", "heuristic, no proof"


def of_models(world: World, layers: int, hidden: int) -> list[Claim]:
    """All claims of the demo of `model`; parameters are in float32."""
    ranks = world.size
    heads = max(2, ranks)
    width = -(-hidden // heads) * heads
    model = Model(layers=max(layers, ranks), hidden=width, heads=heads, positions=32, vocabulary=257)
    steps, instruments = Steps(batch=ranks), Instruments()
    expected = dict(lesson.plain_model(Settings(model, steps=steps)).named_parameters())
    whole = sum(parameter.nbytes for parameter in expected.values())
    largest = max(parameter.nbytes for parameter in expected.values())
    unlike, parts, peaks = 0, {}, {}
    for layout in fitting(model, Layout(), steps, ranks):
        axes = make_axes(layout)
        asked = Settings(model, layout, steps)
        make_part(asked, axes, world.device, instruments)  # what torch keeps of a first time is no memory of the part
        with Peak(world.device) as peak:
            part = make_part(asked, axes, world.device, instruments)
        for name, parameter in part.parameters.items():
            own = piece_of(expected[name], parameter, axes.tp).to(parameter.device)
            unlike += int((parameter != own).sum())
        axes.close()
        held = storage_bytes(part.parameters.values())
        predicted = 4 * predict(model, layout, steps, world.rank).parameters
        parts[str(layout)] = Claim("", "w · (of its layers, over tp)", predicted, held, "B", MEGATRON)
        # The largest is drawn whole, and multiplied by its deviation. A GPU has only the product.
        peaks[str(layout)] = Claim(
            "",
            "its part + 2 · the largest tensor",
            predicted + 2 * largest,
            peak.bytes,
            "B",
            "derived",
            relation="=" if world.device.type == "cpu" else "<=",
            tolerance=0.01,
            # A GPU's allocator rounds each tensor up to 512 bytes.
            absolute=0 if world.device.type == "cpu" else 511 * (len(part.parameters) + 2),
        )
    world.cost("bytes of the whole model", whole, "B")
    what = "initial values that differ from one device's, in every layout"
    return as_key(
        fold("bytes of this rank's part, in every layout", parts),
        fold("bytes at most while it is made, in every layout", peaks),
        Claim(what, "0", 0, unlike, "1", "derived: of name and seed alone", "compared"),
    )


def of_gradients(world: World, blocks: int) -> list[Claim]:
    """All claims of the demo of `gradients`."""
    steps = lesson.small_steps(world.size)
    settings = Settings(lesson.small_model(world.size, blocks), Layout(), steps)
    one = lesson.one_device(settings, 1, world.device)
    largest = max(gradient.abs().max().item() for gradient in one.gradients.values())
    bound, gradients, reports = lesson.rounding(settings), {}, {}

    def within(of: str, scale: float, found: float) -> Claim:
        return Claim("", f"6Ku of the {of}", bound * scale, found, "1", HEURISTIC, "compared", "<=")

    for layout in _layouts(world.size, settings):
        found = lesson.beside(build(replace(settings, layout=layout), world.device), one)
        of_both = max(one.reports[0].loss, one.reports[0].norm)
        gradients[lesson.label(layout)] = within("largest", largest, found.gradients)
        reports[lesson.label(layout)] = within("larger", of_both, found.reports)
    # One device's model and its loss are ours, and so in every layout. So they are compared with torch's functions.
    weights = {name: value.clone().requires_grad_() for name, value in one.start.items()}
    inputs, targets = (part.to(world.device) for part in lesson.samples_of(settings).take(range(steps.batch)))
    lesson.loss_by_torch(settings, weights, inputs, targets).backward()
    by_torch = {
        name: within("largest", largest, lesson.far(value.grad, one.gradients[name]))
        for name, value in weights.items()
        if value.grad is not None
    }
    return as_key(
        fold("gradients of this rank's shards, distance from one device's, in every layout", gradients),
        fold("loss and norm, distance from one device's, in every layout", reports),
        fold("one device's gradients, distance from those of torch's functions alone", by_torch),
    )


def _layouts(ranks: int, settings: Settings) -> Iterator[Layout]:
    """Every layout, sequence-parallel where it can be, with ZeRO-1 where tp and dp meet."""
    for layout in fitting(settings.model, Layout(), settings.steps, ranks):
        zero = 1 if layout.dp > 1 and layout.tp > 1 else 0
        yield replace(layout, microbatches=layout.pp, sequence_parallel=layout.tp > 1, zero=zero)
