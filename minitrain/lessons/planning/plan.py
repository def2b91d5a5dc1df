"""What the demo of the dry run shows: predictions beside published figures, and beside modules that are counted.

Modules stand on torch's `meta` device, where shapes are all there is: a trillion parameters take no memory.
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
from minitrain.lessons import Claim
from minitrain.models.gpt import GPT, GPTConfig
from minitrain.pipeline_parallel.splitting import evenly, split
from minitrain.planning.plan import Coordinate, predict
from minitrain.planning.plan_time import shape_of
from minitrain.tensor_parallel.parallelize import parallelize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NARAYANAN, KORTHIKANTI, BROWN = "Narayanan et al. 2021", "Korthikanti et al. 2022", "Brown et al. 2020"
RAJBHANDARI = "Rajbhandari et al. 2020, figure 1"


class Published(NamedTuple):
    """A line of table 1 of Narayanan et al. 2021; 51,200 tokens in the vocabulary, 2,048 in a sequence.

    Attributes:
        billions: Of parameters.
        heads: Attention heads.
        hidden: Width.
        layers: Blocks.
    """

    billions: float
    heads: int
    hidden: int
    layers: int


TABLE_1 = (
    Published(1.7, 24, 2304, 24),
    Published(3.6, 32, 3072, 30),
    Published(7.5, 32, 4096, 36),
    Published(18.4, 48, 6144, 40),
    Published(39.1, 64, 8192, 48),
    Published(76.1, 80, 10240, 60),
    Published(145.6, 96, 12288, 80),
    Published(310.1, 128, 16384, 96),
    Published(529.6, 128, 20480, 105),
    Published(1008.0, 160, 25600, 128),
)


def claims(world: World, preset: str, stages: int) -> list[Claim]:
    """All claims of the demo."""
    model = Model(preset=preset)  # type: ignore[arg-type]  # checked by settings
    stages = min(stages, model.sizes.layers)
    world.figure(lambda: picture(Model(preset="175b")))
    return [*counted(world, model, stages), *parameters(), *days(), *published_memory()]


def counted(world: World, model: Model, stages: int) -> list[Claim]:
    """Claims on parameters of real modules: of the whole model, of each stage, of a tensor-parallel rank."""
    config = GPTConfig(**vars(model.sizes), tied=model.tied)
    with torch.device("meta"):
        gpt = GPT(config, seed=0)
    source = "Radford et al. 2019, §2.3"
    whole = costs.model_parameters(shape_of(model))
    layout, steps = Layout(pp=stages), Steps(batch=1)
    predicted = [predict(model, layout, steps, Coordinate(pp)).parameters for pp in range(stages)]
    found = [_elements(stage) for stage in split(gpt, evenly(gpt, stages))] if stages > 1 else [_elements(gpt)]
    wrong = sum(mine != theirs for mine, theirs in zip(predicted, found, strict=True))
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
        Claim(f"stages of {stages} with another number of parameters", "0", 0, wrong, "1", f"{NARAYANAN}, §2.2"),
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


def parameters() -> list[Claim]:
    """Claims on published numbers of parameters, which are rounded to 0.1 · 10⁹."""
    other = 0
    for billions, heads, hidden, layers in TABLE_1:
        predicted = costs.model_parameters(costs.Shape(layers, hidden, heads, 2048, 51200))
        other += round(predicted / 1e9, 1) != billions
    gpt3 = costs.model_parameters(shape_of(Model(preset="175b"))) / 1e9
    what = "of ten published models, those with another number of parameters, in 10⁹ to one digit"
    return [
        Claim(what, "0", 0, other, "1", f"{NARAYANAN}, table 1", how="compared", key=True),
        Claim(
            "GPT-3's parameters in 10⁹, as published",
            "L(12h² + 13h) + (V + s)h + 2h",
            gpt3,
            174.6,
            "1",
            f"{BROWN}, table D.1",
            how="compared",
            absolute=0.05,
        ),
    ]


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


def days() -> list[Claim]:
    """Claims on published days, which are whole numbers."""
    made = []
    for preset, tokens, ranks, per_second, published in TRAININGS:
        model = Model(preset=preset)  # type: ignore[arg-type]
        estimate = work_costs.days_estimate(tokens, costs.model_parameters(shape_of(model)), ranks, per_second)
        what = f"days for {preset}, {tokens / 1e9:g} · 10⁹ tokens, {ranks:,} GPUs, {per_second / 1e12:g} · 10¹² FLOP/s"
        source, key = f"{NARAYANAN}, §5.1, equation 4", preset == "175b"
        what = f"{what}: as published"
        made.append(Claim(what, "8TP/(nX)", estimate, published, "1", source, "compared", absolute=0.5, key=key))
    return made


def published_memory() -> list[Claim]:
    """Claims on published bytes: ZeRO's figure, and what recomputing attention's core saves of activations."""
    made = []
    for stage, published in enumerate((120, 31.4, 16.6, 1.9)):
        total = sum(zero.state_bytes(stage, 7.5e9, 64).values()) / 1e9
        what = f"GB of states, 7.5 · 10⁹ parameters on 64 ranks, stage {stage}: as published"
        key = stage == 3
        made.append(Claim(what, "Σ KΨ or KΨ/n", total, published, "1", RAJBHANDARI, "compared", absolute=0.05, key=key))
    for name, heads, hidden, published in (("GPT-3", 96, 12288, 70), ("MT-NLG", 128, 20480, 65)):
        kept = [activations.layer(1, 2048, hidden, heads, 1, False, how) for how in ("none", "selective")]
        saved = 100 * (1 - kept[1] / kept[0])
        what = f"activations of {name} that selective recomputation saves, %: as published"
        source, key = f"{KORTHIKANTI}, §5", name == "GPT-3"
        made.append(
            Claim(what, "(5as/h)/(34 + 5as/h)", saved, published, "1", source, "published", absolute=0.5, key=key)
        )
    return made


def picture(model: Model) -> Figure:
    """What a rank of each pipeline rank holds, 12 stages beside 64."""
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


def demo(world: World, preset: str = "175b", stages: int = 12) -> list[Claim]:
    """Predicts published trainings and counts modules; the table shows predictions beside the papers' figures.

    Args:
        preset: A model whose modules are counted without memory: tiny, gpt2, xl, 175b or 1t.
        stages: Pipeline stages into which it is cut.
    """
    return claims(world, preset, stages)
