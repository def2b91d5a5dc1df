"""The lesson of `minitrain.craft.probes`: probabilities that add up to 1, and what a training does to them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from minitrain.comm import World
from minitrain.craft import probes
from minitrain.lessons.claims import Claim
from minitrain.lessons.craft import common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROMPT, RIGHT, WRONG = b"one of th", b"e ", b"q "
BLIMP, CARLINI = "Warstadt et al. 2020, §3", "Carlini et al. 2019, §4"


def demo(world: World, steps: int = 120) -> list[Claim]:
    """Asks a small GPT during its training how it would go on; the picture: the answers over the run.

    Args:
        steps: Of training; a probe every tenth.
    """
    training = common.Training(world, lr=1e-2)
    gpt = training.model

    def model(tokens: torch.Tensor) -> torch.Tensor:
        return gpt(tokens.to(world.device))[0].cpu()

    path: dict[int, tuple[float, float]] = {}
    with world.timed(f"{steps} steps with probes"):
        for number in range(steps + 1):
            if number % 10 == 0:
                right, wrong = (probes.log_probability(model, PROMPT, each, common.SEQ) for each in (RIGHT, WRONG))
                path[number] = right, wrong
            if number < steps:
                training.step(number)
    world.figure(lambda: picture(path))
    logs = [probes.log_probability(model, PROMPT, [token], common.SEQ) for token in range(256)]
    one_by_one = sum(
        probes.log_probability(model, PROMPT + RIGHT[:place], RIGHT[place : place + 1], common.SEQ)
        for place in range(len(RIGHT))
    )
    at_once = probes.log_probability(model, PROMPT, RIGHT, common.SEQ)
    loss = common.token_losses(gpt, (_tokens(world, PROMPT + RIGHT[:-1]), _tokens(world, PROMPT[1:] + RIGHT)))
    last = max(path)
    return [
        Claim(
            "probabilities of all tokens that may follow, added up",
            "Σ p(x) = 1",
            1,
            math.fsum(map(math.exp, logs)),
            "1",
            "derived",
            tolerance=1e-12,
            key=True,
        ),
        Claim(
            "a continuation's log-probability: difference from its tokens' one by one",
            "Σ log p(xᵢ | x₁ … xᵢ₋₁)",
            0,
            abs(at_once - one_by_one),
            "1",
            BLIMP,
            "compared",
            absolute=1e-4,
            key=True,
        ),
        Claim(
            "difference from minus the loss of these tokens, by torch",
            "−Σ Lᵢ",
            0,
            abs(at_once + float(loss[0, -len(RIGHT) :].sum())),
            "1",
            "derived",
            "compared",
            absolute=1e-9,
        ),
        Claim(
            "log-probability of a frequent word's end, after the run and before it",
            "log p after ≥ log p before",
            path[0][0],
            path[last][0],
            "nats",
            CARLINI,
            "compared",
            ">=",
            key=True,
        ),
        Claim(
            "how much likelier than letters that never follow, after the run",
            "log p(right) > log p(wrong)",
            0,
            probes.prefers(model, PROMPT, RIGHT, WRONG, common.SEQ),
            "nats",
            BLIMP,
            "compared",
            ">=",
            key=True,
        ),
    ]


def _tokens(world: World, text: bytes) -> torch.Tensor:
    return torch.tensor([list(text)], device=world.device)


def picture(path: dict[int, tuple[float, float]]) -> Figure:
    """The probability of the right and of the wrong continuation over the steps, on a logarithmic scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for place, (name, color) in enumerate((("“the ”", "#0072B2"), ("“thq ”", "#D55E00"))):
        axes.semilogy(list(path), [math.exp(logs[place]) for logs in path.values()], color=color, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("probability of the end\nafter “one of th”")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure
