"""What the demos of `model` and `gradients` show: parts that are one model's, and gradients that are one device's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from minitrain.comm import Peak, World
from minitrain.comm.memory import storage_bytes
from minitrain.composition.layout import make_axes
from minitrain.composition.settings import Layout, Model, Settings, Steps, fitting
from minitrain.composition.step import Instruments
from minitrain.lessons import Claim
from minitrain.lessons.composition import common as lesson
from minitrain.planning.plan import predict
from minitrain.tensor_parallel.parallelize import piece_of
from minitrain.train import build, make_part

MEGATRON, HIGHAM = "Shoeybi et al. 2019, §3", "Higham 2002, §3.1"


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
    unlike, claims = 0, []
    layouts = [*fitting(model, Layout(), steps, ranks)]
    for layout in layouts:
        axes = make_axes(layout)
        asked = Settings(model, layout, steps)
        make_part(asked, axes, world.device, instruments)  # what torch keeps of a first time is no memory of the part
        with Peak(world.device) as peak:
            part = make_part(asked, axes, world.device, instruments)
        for name, parameter in part.parameters.items():
            own = piece_of(expected[name], parameter, axes.tp).to(parameter.device)
            unlike += int((parameter != own).sum())
        axes.close()
        held, predicted = (
            storage_bytes(part.parameters.values()),
            4 * predict(model, layout, steps, world.rank).parameters,
        )
        key = layout in (layouts[0], layouts[-1])  # on one axis, and on as many as the ranks allow
        what = f"{layout}: bytes of this rank's part"
        claims.append(Claim(what, "of its layers, over tp", predicted, held, "B", MEGATRON, key=key))
        # While the largest is drawn and cut: its numbers, these times their deviation, and the piece.
        what = f"{layout}: bytes at most while it is made"
        claims.append(
            Claim(
                what,
                "its part + 3 · the largest tensor",
                predicted + 3 * largest,
                peak.bytes,
                "B",
                "derived",
                relation="<=",
                key=key,
            )
        )
    world.cost("bytes of the whole model", whole, "B")
    what = "initial values unlike one device's, over all layouts"
    return [*claims, Claim(what, "0", 0, unlike, "1", "derived: of name and seed alone", "compared", key=True)]


def of_gradients(world: World, blocks: int) -> list[Claim]:
    """All claims of the demo of `gradients`."""
    steps = lesson.small_steps(world.size)
    settings = Settings(lesson.small_model(world.size, blocks), Layout(), steps)
    one = lesson.one_device(settings, 1, world.device)
    largest = max(gradient.abs().max().item() for gradient in one.gradients.values())
    bound, claims = lesson.rounding(settings), []
    layouts = [*_layouts(world.size, settings)]
    for layout in layouts:
        key = layout in (layouts[0], layouts[-1])  # on one axis, and on as many as the ranks allow
        found = lesson.beside(build(replace(settings, layout=layout), world.device), one)
        name = lesson.label(layout)
        what = f"{name}: gradients of this rank's shards, distance from one device's"
        claims.append(
            Claim(what, "6Ku of the largest", bound * largest, found.gradients, "1", HIGHAM, "compared", "<=", key=key)
        )
        what = f"{name}: loss and norm, distance from one device's"
        of_both = max(one.reports[0].loss, one.reports[0].norm)
        claims.append(
            Claim(what, "6Ku of the larger", bound * of_both, found.reports, "1", HIGHAM, "compared", "<=", key=key)
        )
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in one.gradients.values()))
    what = "norm of one device's gradient, from torch's clipping"
    claims.append(
        Claim(
            what,
            "√Σg²",
            norm,
            one.reports[0].norm,
            "1",
            "Pascanu et al. 2013, §3.2",
            "compared",
            tolerance=bound,
            key=True,
        )
    )
    return claims


def _layouts(ranks: int, settings: Settings) -> Iterator[Layout]:
    """Every layout, sequence-parallel where it can be, with ZeRO-1 where tp and dp meet."""
    for layout in fitting(settings.model, Layout(), settings.steps, ranks):
        zero = 1 if layout.dp > 1 and layout.tp > 1 else 0
        yield replace(layout, microbatches=layout.pp, sequence_parallel=layout.tp > 1, zero=zero)
