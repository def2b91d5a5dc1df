"""The lesson of `minitrain.optimizers.scaling`: what each rule keeps, over all batches that can be drawn.

All examples are powers of two or small integers and all rates are powers of two, so every sum is exact in float64 and
each claim is an equality. Batches are drawn with replacement, and every possible batch is taken once, so that means
and variances are those of the distribution and not of a sample.

What the rules do to a training cannot be claimed, only tried: `sweep` trains a small GPT with batches of several sizes,
and `trust_ratios` watches LAMB choose the lengths of its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.data.text import Samples, Text
from minitrain.lessons.claims import Claim, fold
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.optimizers.adam import Adam
from minitrain.optimizers.lamb import LAMB
from minitrain.optimizers.scaling import linear, square_root, warm_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GOYAL, KRIZHEVSKY, MALLADI = "Goyal et al. 2017, §2.1", "Krizhevsky 2014", "Malladi et al. 2022"
EXAMPLES = (-3.0, 1.0, 2.0, 8.0)  # derivatives of four examples: of mean 2 and variance 15.5


def demo(world: World, lr: float = 0.125, k: int = 4) -> list[Claim]:
    """Steps with batches k times as large, over all batches; the table shows what each scaling rule keeps.

    The picture: LAMB's trust ratio in each matrix of a small GPT.

    Args:
        lr: α, the learning rate of the small batch, of one example; a power of two.
        k: How many times as large the large batch is; 4, so that √k is exact and k + 1 is odd.
    """
    batches = torch.tensor([*product(EXAMPLES, repeat=k)], dtype=torch.float64, device=world.device)  # (4ᵏ, k)
    small = -lr * batches  # a step for each example
    steps = {
        name: -rule(lr, k, 1) * batches.mean(1) for name, rule in (("linear", linear), ("square root", square_root))
    }
    with world.timed(f"signs of {k} draws with Adam"):
        signs = without_signal(world, lr, k)
    rates = [warm_up(lr, step, 3) for step in range(5)]
    world.figure(lambda: picture_of_ratios(trust_ratios()))
    return [
        Claim(
            "SGD, linear loss: batches whose one step at kα ends elsewhere than k steps at α",
            "kα ḡ = Σ α gᵢ",
            0,
            int((steps["linear"] != small.sum(1)).sum()),
            "batches",
            GOYAL,
            "compared",
            key=True,
        ),
        Claim(
            "SGD: variance of one step of the large batch, linear rule, over that of one step of the small batch",
            "k",
            costs.scaled_variance(k, k),
            ratio(steps["linear"], small[:, 0]),
            source="derived",
            how="compared",
            key=True,
        ),
        Claim(
            "SGD: variance of one step of the large batch, square-root rule, over that of one step of the small batch",
            "1",
            costs.scaled_variance(k, k**0.5),
            ratio(steps["square root"], small[:, 0]),
            source=KRIZHEVSKY,
            how="compared",
            key=True,
        ),
        fold(
            "Adam's direction without means, gradients of mean 0: mean square of one step over that of k steps",
            {
                name: Claim("", "1; k", predicted, signs[name], source=MALLADI, how="compared", tolerance=2.0**-50)
                for name, predicted in (("square root", 1.0), ("linear", float(k + 1)))
            },
            key=True,
        ),
        Claim(
            "warm-up of 3 steps: steps whose rate differs from 1/4, 2/4, 3/4, 1, 1 of α",
            "α min(1, (t + 1)/(T + 1))",
            0,
            sum(a != b * lr / 4 for a, b in zip(rates, (1, 2, 3, 4, 4), strict=True)),
            "steps",
            "Goyal et al. 2017, §2.2",
            "compared",
        ),
    ]


def ratio(step: Tensor, other: Tensor) -> float:
    return float(step.var(correction=0) / other.var(correction=0))


def without_signal(world: World, lr: float, k: int) -> dict[str, float]:
    """Adam with β = 0 and ε = 0, whose step is ±α, on gradients of ±1: all 2ᵏ⁺¹ draws at once, one per element.

    The large batch has k + 1 examples, an odd number, so that no mean gradient is 0.
    """
    draws = torch.tensor([*product((-1.0, 1.0), repeat=k + 1)], dtype=torch.float64, device=world.device)
    small = moved(draws.unbind(1), lr)
    rules = {"linear": linear(lr, k + 1, 1), "square root": square_root(lr, k + 1, 1)}
    # The root of k + 1, the step, its square and the ratio are rounded: fewer than 2³ units of 2⁻⁵³, as is the sum.
    return {
        name: float(moved([draws.mean(1)], rate).square().mean() / small.square().mean())
        for name, rate in rules.items()
    }


def moved(gradients, lr: float) -> Tensor:
    """How far each element has moved after a step for each gradient."""
    theta = torch.zeros_like(gradients[0])
    optimizer = Adam([theta], lr, betas=(0.0, 0.0), eps=0.0)
    for g in gradients:
        theta.grad = g.contiguous()
        optimizer.step()
    return theta


# ---- experiments ----

CONFIG = GPTConfig(positions=32, layers=2, hidden=32, heads=2)  # 34,688 parameters
BATCHES = (4, 16, 64, 256)
OPTIMIZERS: dict[str, tuple[Callable[..., Any], float]] = {"Adam": (Adam, 0.003), "LAMB": (LAMB, 0.01)}
RULES = {"linear": linear, "square root": square_root}


class Training(NamedTuple):
    """One training of a sweep; `rule` is empty for the smallest batch, whose rate is not scaled."""

    optimizer: str
    rule: str
    batch: int


def trainings() -> list[Training]:
    """All of a sweep, from the smallest batch, with which both rules agree and share a training, to the largest."""
    smallest = [Training(optimizer, "", BATCHES[0]) for optimizer in OPTIMIZERS]
    larger = [Training(*each) for each in product(OPTIMIZERS, RULES, BATCHES[1:])]
    return smallest + sorted(larger, key=lambda each: each.batch)


def sweep(world: World, sequences: int = 2048, seed: int = 0) -> dict[Training, float]:
    """Train a small GPT once for each of `trainings`, which the ranks share, on equally many sequences.

    The rate suits the smallest batch, and is scaled by a rule for the others. It is warmed up over an eighth of the
    steps.

    Args:
        sequences: Of each training, so that a batch of B has `sequences` / B steps.
        seed: Of the parameters and of the order of the text.

    Returns:
        The losses on held-out text of the trainings of this rank.
    """
    return {each: held_out(each, sequences, seed) for each in trainings()[world.rank :: world.size]}


def held_out(training: Training, sequences: int, seed: int) -> float:
    """The loss on held-out text after a training."""
    text, model = Text.load("reference"), GPT(CONFIG, seed=seed)
    make, best = OPTIMIZERS[training.optimizer]
    samples, steps = Samples(text.training, CONFIG.positions, seed), sequences // training.batch
    lr = RULES[training.rule](best, training.batch, BATCHES[0]) if training.rule else best
    optimizer = make(model.parameters(), lr=lr)
    for step in range(steps):
        optimizer.lr = warm_up(lr, step, steps // 8)
        model.zero_grad()
        model(*samples.batch(step, training.batch))[1].backward()
        optimizer.step()
    with torch.no_grad():
        return model(*Samples(text.validation, CONFIG.positions).batch(0, 256))[1].item()


def picture_of_sweep(by_rank: Sequence[dict[Training, float]]) -> Figure:
    """Losses on held-out text over the size of the batch; a line per rule, and a panel per optimizer."""
    from matplotlib.figure import Figure

    top = 5.0  # little better than nothing learned, ln 256 = 5.5
    losses = {training: loss for each in by_rank for training, loss in each.items()}
    figure = Figure(figsize=(7, 2.8), layout="constrained", facecolor="white")
    panels = figure.subplots(1, len(OPTIMIZERS), sharey=True)
    for axes, (optimizer, (_, best)) in zip(panels, OPTIMIZERS.items(), strict=True):
        first = losses[Training(optimizer, "", BATCHES[0])]
        for rule, marker, color in zip(RULES, "so", ("#D55E00", "#0072B2"), strict=True):
            rest = [losses[Training(optimizer, rule, batch)] for batch in BATCHES[1:]]
            axes.plot(BATCHES, [first, *rest], marker=marker, color=color, label=rule)
            for batch, loss in zip(BATCHES[1:], rest, strict=True):
                if loss > top:
                    axes.annotate(f"{loss:.1f} ↑", (batch, top), color=color, ha="center", va="top")
        axes.set_xscale("log", base=2)
        axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
        axes.set_title(f"{optimizer}, rate {best} at batch {BATCHES[0]}", fontsize=10)
        axes.set_xlabel("sequences in a batch")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(2.4, top)
    panels[0].set_ylabel("loss on held-out text")
    panels[0].legend(frameon=False)
    return figure


def trust_ratios(steps: int = 60, batch: int = 16, lr: float = 0.01, seed: int = 0) -> dict[str, list[float]]:
    """‖x‖/‖r + λx‖ of each matrix in each step, while a small GPT is trained with LAMB."""
    model, samples = GPT(CONFIG, seed=seed), Samples(Text.load("reference").training, CONFIG.positions)
    optimizer, (beta_1, beta_2) = LAMB(model.parameters(), lr=lr), (0.9, 0.999)
    ratios: dict[str, list[float]] = {}
    for t in range(1, steps + 1):
        model.zero_grad()
        model(*samples.batch(t - 1, batch))[1].backward()
        before = [x.detach().clone() for x in optimizer.parameters]
        optimizer.step()
        # What the step has used, from the means that it has left behind.
        for (name, _), x, m, v in zip(model.named_parameters(), before, optimizer.m, optimizer.v, strict=True):
            if x.dim() == 2:
                r = m / (1 - beta_1**t) / ((v / (1 - beta_2**t)).sqrt() + optimizer.eps)
                ratio = x.norm() / (r + optimizer.weight_decay * x).norm()
                ratios.setdefault(name.removesuffix(".weight"), []).append(ratio.item())
    return ratios


def picture_of_ratios(ratios: dict[str, list[float]]) -> Figure:
    """A line per matrix over the steps, on a logarithmic scale; a colour for each kind of matrix."""
    from matplotlib.figure import Figure

    kinds = {
        "embedding.tokens": ("token embedding", "#000000"),
        "embedding.positions": ("positions", "#999999"),
        "attention.query": ("queries, keys", "#0072B2"),
        "attention.key": ("queries, keys", "#0072B2"),
        "attention.value": ("values", "#56B4E9"),
        "attention.output": ("attention's output", "#D55E00"),
        "mlp.up": ("MLP up", "#009E73"),
        "mlp.down": ("MLP down", "#CC79A7"),
    }
    figure = Figure(figsize=(7, 3), layout="constrained", facecolor="white")
    axes, shown = figure.subplots(), set()
    for name, values in ratios.items():
        label, color = kinds[name.removeprefix("blocks.0.").removeprefix("blocks.1.")]
        style = "--" if name.startswith("blocks.1.") else "-"
        axes.semilogy(range(1, len(values) + 1), values, style, color=color, label=None if label in shown else label)
        shown.add(label)
    axes.set_xlabel("step (dashed: second block)")
    axes.set_ylabel("trust ratio")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure
