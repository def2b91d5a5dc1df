"""What the demo of the dry run shows: predictions compared with published figures, and with counted modules.

Modules are on torch's `meta` device, which has shapes only: a trillion parameters take no memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from minitrain.comm import World
from minitrain.comm.comm import Comm
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import activations, zero
from minitrain.costs import composition as costs
from minitrain.costs import composition_work as work_costs
from minitrain.costs import recomputation as recomputation_costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.recomputation import common as recomputation
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel.splitting import evenly, split
from minitrain.planning.full import plan_time
from minitrain.planning.full.plan_time import shape_of
from minitrain.planning.full.published import TABLE_1
from minitrain.planning.plan import Coordinate, predict
from minitrain.recomputation.full import selective
from minitrain.recomputation.full.every_block import every_block
from minitrain.tensor_parallel.full.parallelize import parallelize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NARAYANAN, KORTHIKANTI, BROWN = "Narayanan et al. 2021", "Korthikanti et al. 2022", "Brown et al. 2020"
RAJBHANDARI = "Rajbhandari et al. 2020, figure 1"


def claims(world: World, preset: str, stages: int) -> list[Claim]:
    """All claims of the demo."""
    model = Model(preset=preset)  # type: ignore[arg-type]  # checked by settings
    stages = min(stages, model.sizes.layers)
    world.figure(lambda: picture(Model(preset="175b")))
    return [
        *counted(world, model, stages),
        *operations(world),
        parameters(),
        days(),
        seconds(),
        *published_memory(),
    ]


def counted(world: World, model: Model, stages: int) -> list[Claim]:
    """Claims on parameters of real modules: of the whole model, of each stage, of a tensor-parallel rank."""
    config = GPTConfig(**vars(model.sizes), tied=model.tied)
    with torch.device("meta"):
        gpt = GPT(config, seed=0)
    source = "Radford et al. 2019, §2.3"
    whole = costs.model_parameters(shape_of(model))
    layout, steps = Layout(pp=stages), Steps(batch=1)
    parts = split(gpt, evenly(gpt, stages)) if stages > 1 else [gpt]
    cases = {}
    for pp, part in enumerate(parts):
        predicted = predict(model, layout, steps, Coordinate(pp)).parameters
        formula = "of its layers; first: (V + s)h, last: Vh + 2h"
        cases[f"stage {pp}"] = Claim("", formula, predicted, _elements(part), "1", f"{NARAYANAN}, §2.2")
    made = [
        Claim(
            f"parameters of {model.preset}, whole",
            "L(12h² + 13h) + (V + s)h + 2h",
            whole,
            _elements(gpt),
            "1",
            source,
            key=True,
        ),
        fold(f"parameters of each of {stages} pipeline stages", cases),
    ]
    # As many heads as every number of ranks divides; the vocabulary need not divide.
    small = Model(layers=3, hidden=16 * world.size, heads=2 * world.size, positions=24, vocabulary=259)
    with torch.device("meta"):
        cut = GPT(GPTConfig(**vars(small.sizes)), seed=0)
    parallelize(cut, Comm(check=False))
    own = predict(small, Layout(tp=world.size), Steps(batch=1), Coordinate(tp=world.rank)).parameters
    formula = "L(12h²/t + 7h/t + 6h) + V'h/t + sh + 2h"
    made.append(
        Claim(
            "parameters of this tensor-parallel rank",
            formula,
            own,
            _elements(cut),
            "1",
            "Shoeybi et al. 2019, §3",
            key=True,
        )
    )
    return made


def _elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def operations(world: World) -> list[Claim]:
    """Claims on the operations of a small model's step, as torch counts them, and what recomputation leaves of it."""
    small = Model(layers=3, hidden=32, heads=4, positions=24, vocabulary=61)
    trial = recomputation.Trial(world, 3, 32, 4, 2, 24, 61)
    ways = {"none": recomputation.nothing, "selective": selective.recompute, "full": every_block}
    found = {name: trial.operations(how) for name, how in ways.items()}
    counts, shares = {}, {}
    source = f"{KORTHIKANTI}, appendix A, equation 7; {NARAYANAN}, §5.1, equation 3, with all done again"
    for name, counted in found.items():
        work = plan_time.work(small, Layout(recompute=name), Steps(batch=2))  # type: ignore[arg-type]
        formula = "72bsLh²(1 + s/6h + V/12hL), and what is done again"
        counts[name] = Claim("", formula, work.done, counted, source=source)
        most, formula = found["none"] / counted, "operations of the model / operations done"
        shares[name] = Claim("", formula, work.most, most, source="Chowdhery et al. 2022, appendix B", absolute=1e-12)
    del shares["none"]  # 1 by its definition
    return [
        fold("operations of a step, without recomputation, with selective and with full", counts, key=True),
        fold("most model FLOP utilisation that recomputation leaves, selective and full", shares),
    ]


def parameters() -> Claim:
    """The claim on published numbers of parameters, which are rounded to 0.1 · 10⁹."""
    source = f"{BROWN}, table D.1; {NARAYANAN}, table 1"
    formula, cases = "L(12h² + 13h) + (V + s)h + 2h", {}
    gpt3 = Model(preset="175b")
    for name, published, shape in (
        ("GPT-3", 174.6, shape_of(gpt3)),
        *(
            (f"{row.billions} · 10⁹", row.billions, costs.Shape(row.layers, row.hidden, row.heads, 2048, 51200))
            for row in TABLE_1
        ),
    ):
        predicted = costs.model_parameters(shape) / 1e9
        cases[name] = Claim("", formula, predicted, published, "10⁹", source, "published", absolute=0.05)
    return fold("parameters of GPT-3, and of ten other models", cases, key=True)


class Training(NamedTuple):
    """A training whose length is published.

    Attributes:
        preset: The model.
        tokens: To train on.
        ranks: GPUs.
        per_second: Operations that each did in a second.
        days: As published.
    """

    preset: str
    tokens: float
    ranks: int
    per_second: float
    days: int


TRAININGS = (Training("175b", 300e9, 1024, 140e12, 34), Training("1t", 450e9, 3072, 163e12, 84))


def days() -> Claim:
    """The claim on published days, which are whole numbers."""
    cases = {}
    for preset, tokens, ranks, per_second, published in TRAININGS:
        model = Model(preset=preset)  # type: ignore[arg-type]
        estimate = work_costs.days_estimate(tokens, costs.model_parameters(shape_of(model)), ranks, per_second)
        source = f"{NARAYANAN}, §5.1, equation 4"
        cases[preset] = Claim("", "8TP/(nX)", estimate, published, "days", source, "published", absolute=0.5)
    return fold("training of GPT-3 on 300 · 10⁹ tokens with 1,024 GPUs, and of 10¹² parameters", cases, key=True)


class Iteration(NamedTuple):
    """A line of tables 3 and 5 of Korthikanti et al. 2022: A100s, a vocabulary of 51,200 tokens, sequences of 2,048.

    Attributes:
        heads: Attention heads.
        hidden: Width.
        layers: Blocks.
        ranks: GPUs.
        batch: Sequences in a step.
        utilisation: Model FLOP utilisation in per cent.
        seconds: Of a step.
    """

    heads: int
    hidden: int
    layers: int
    ranks: int
    batch: int
    utilisation: float
    seconds: float


TABLE_5 = {
    "175b": Iteration(96, 12288, 96, 64, 64, 51.4, 13.75),
    "22b": Iteration(64, 6144, 48, 8, 4, 41.5, 1.10),
    "530b": Iteration(128, 20480, 105, 280, 280, 56.0, 37.83),
    "1t": Iteration(160, 25600, 128, 512, 512, 56.3, 71.49),
}


def seconds() -> Claim:
    """The claim on published seconds of a step; these, and utilisations in per cent, are rounded."""
    cases = {}
    for name, each in TABLE_5.items():
        shape = costs.Shape(each.layers, each.hidden, each.heads, 2048, 51200)
        done = work_costs.step_flops(each.batch, shape)
        predicted = work_costs.step_seconds(done, each.ranks, each.utilisation / 100 * 312e12)
        rounded = 0.05 / each.utilisation + 0.005 / each.seconds
        source, formula = f"{KORTHIKANTI}, table 5", "operations of the model / (n · MFU · 312 · 10¹²)"
        cases[name] = Claim("", formula, predicted, each.seconds, "s", source, "published", tolerance=rounded)
    return fold(
        "a step of GPT-3 on 64 A100s at 51.4 % model FLOP utilisation, and of three other models", cases, key=True
    )


def published_memory() -> list[Claim]:
    """Claims on published bytes: ZeRO's figure, and what recomputing attention's core saves and costs."""
    states = {}
    for stage, published in reversed([*enumerate((120, 31.4, 16.6, 1.9))]):
        total, formula = sum(zero.state_bytes(stage, 7.5e9, 64).values()) / 1e9, "Σ of KΨ, or KΨ/n"
        states[f"stage {stage}"] = Claim("", formula, total, published, "GB", RAJBHANDARI, "published", absolute=0.05)
    saved, added = {}, {}
    for name, heads, hidden, less, more in (("GPT-3", 96, 12288, 70, 2.7), ("MT-NLG", 128, 20480, 65, 1.6)):
        kept = [activations.layer(1, 2048, hidden, heads, 1, False, how) for how in ("none", "selective")]
        part, source = 100 * (1 - kept[1] / kept[0]), f"{KORTHIKANTI}, §5"
        saved[name] = Claim("", "(5as/h)/(34 + 5as/h)", part, less, "%", source, "published", absolute=0.5)
        core, layer = (of(1, 2048, hidden) for of in (recomputation_costs.core_flops, recomputation_costs.layer_flops))
        part = 100 * core / layer
        added[name] = Claim("", "s/(6h + s)", part, more, "%", source, "published", absolute=0.05)
    return [
        fold(
            "states of 7.5 · 10⁹ parameters on each of 64 ranks, ZeRO's stage 3, and so in stages 0 to 2",
            states,
        ),
        fold("activations of GPT-3, and of MT-NLG, that selective recomputation saves", saved),
        fold("operations of a forward of GPT-3, and of MT-NLG, that selective recomputation does again", added),
    ]


def picture(model: Model) -> Figure:
    """The bytes on a rank of each pipeline rank, 12 stages next to 64."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, pp in zip(figure.subplots(1, 2), (12, 64), strict=True):
        layout = Layout(dp=8, pp=pp, tp=8, sequence_parallel=True, zero=1, microbatches=2 * pp, recompute="selective")
        plans = [predict(model, layout, Steps(batch=16 * pp, dtype="bfloat16"), Coordinate(rank)) for rank in range(pp)]
        bottom = [0.0] * pp
        for name in plans[0].held:
            heights = [each.held[name] / 1e9 for each in plans]
            axes.bar(range(pp), heights, bottom=bottom, label=name, width=1.0)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        axes.set(title=f"{model.preset}, {layout}", xlabel="pipeline rank", ylabel="GB on a rank")
    figure.axes[0].legend(fontsize="small")
    return figure


def demo(world: World, preset: str = "175b", stages: int = 10) -> list[Claim]:
    """Predicts published trainings and counts modules; the table shows predictions next to the papers' figures.

    Args:
        preset: A model whose modules are counted without memory: tiny, gpt2, xl, 175b or 1t.
        stages: Pipeline stages into which it is cut.
    """
    return claims(world, preset, stages)
