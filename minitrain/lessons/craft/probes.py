"""The lesson of `minitrain.craft.probes`: probabilities that add up to 1, after a training."""

from __future__ import annotations

import math

import torch

from minitrain.comm import World
from minitrain.craft import probes
from minitrain.lessons.craft import common
from minitrain.lessons.rows import Claim, Rows

PROMPT, RIGHT, WRONG = b"one of th", b"e ", b"q "
BLIMP = "Warstadt et al. 2020, §3"


def demo(world: World) -> list[Claim]:
    """Asks a small GPT after its training how it would go on; the table shows its answers."""
    rows, training, steps = Rows(), common.Training(world, lr=1e-2), 120

    def model(tokens: torch.Tensor) -> torch.Tensor:
        return training.model(tokens.to(world.device))[0].cpu()

    def asked(prompt: bytes, continuation: bytes) -> float:
        return probes.log_probability(model, prompt, continuation, common.SEQ)

    with world.timed(f"{steps} steps"):
        for number in range(steps):
            training.step(number)
    every = math.fsum(math.exp(asked(PROMPT, bytes([token]))) for token in range(256))
    # In float64 a sum of 256 probabilities rounds 255 times, and so does the softmax; logarithms are below 16.
    what, rounding = "probabilities of all tokens that may follow, added up", 2 * (256 + 16) * 2.0**-53
    rows.add(what, "Σ p(x) = 1", 1, every, "1", tolerance=rounding)
    at_once, one_by_one = asked(PROMPT, RIGHT), asked(PROMPT, RIGHT[:1]) + asked(PROMPT + RIGHT[:1], RIGHT[1:])
    what = "a continuation's log-probability: difference from its tokens' one by one"
    formula = "Σ log p(xᵢ | x₁ … xᵢ₋₁)"
    # The model computes in float32, and other kernels may compute a shorter text.
    rows.add(what, formula, 0, abs(at_once - one_by_one), "1", BLIMP, how="compared", absolute=1e-4)
    what, formula = "how much likelier than letters that never follow, after the run", "log p(right) > log p(wrong)"
    found = probes.prefers(model, PROMPT, RIGHT, WRONG, common.SEQ)
    rows.add(what, formula, 0, found, "nats", BLIMP, how="compared", relation=">=")
    return rows.claims()
