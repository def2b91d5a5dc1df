"""The lesson of `minitrain.composition.model`: a rank's part of a model, its bytes, and those while it is made."""

from __future__ import annotations

from minitrain.comm import Peak, World
from minitrain.composition.layout import make_axes
from minitrain.composition.settings import Layout, Model, Settings, Steps, fitting
from minitrain.composition.step import Instruments
from minitrain.lessons.composition.common import plain_model
from minitrain.lessons.rows import Claim, Rows
from minitrain.planning.plan import predict
from minitrain.tensor_parallel.full.parallelize import piece_of
from minitrain.train import make_part


def demo(world: World) -> list[Claim]:
    """Makes parts of a GPT in every layout that the ranks allow; the table shows bytes while they are made."""
    rows, heads = Rows(), max(2, world.size)
    width = -(-64 // heads) * heads
    model = Model(layers=max(9, world.size), hidden=width, heads=heads, positions=32, vocabulary=257)
    steps, on_cpu = Steps(batch=world.size), world.device.type == "cpu"
    whole = dict(plain_model(Settings(model, steps=steps)).named_parameters())
    for layout in fitting(model, Layout(), steps, world.size):
        axes, case = make_axes(layout), str(layout)
        settings, instruments = Settings(model, layout, steps), Instruments()
        make_part(settings, axes, world.device, instruments)  # what torch keeps of a first time is not the part's
        with Peak(world.device) as peak:
            part = make_part(settings, axes, world.device, instruments)
        largest = max(whole[name].nbytes for name in part.parameters)  # each is made whole, and then cut
        predicted = 4 * predict(model, layout, steps, world.rank).parameters
        rows.add(
            "bytes at most while it is made, in every layout",
            "its part + 2 · its largest tensor + 12",
            # The largest is drawn whole, and multiplied by its deviation, a number that torch holds in float64 and in
            # float32 meanwhile: 12 bytes. A GPU has only the product, and its allocator rounds up to 512 bytes.
            predicted + 2 * largest + 12,
            peak.bytes,
            case=case,
            relation="=" if on_cpu else "<=",
            absolute=0 if on_cpu else 511 * (len(part.parameters) + 2),
        )
        made = [parameter.detach().cpu() for parameter in part.parameters.values()]
        right = [piece_of(whole[name], parameter, axes.tp) for name, parameter in part.parameters.items()]
        what = "initial values that differ from one device's, in every layout"
        rows.equal(what, made, [each.detach() for each in right], source="derived: of name and seed alone", case=case)
        axes.close()
    return rows.claims()
