"""The papers' formulas, worked out in plain Python for matrices of a few numbers.

Where a paper updates a mean or a sum, this file adds up all gradients so far, each with its weight, so that a mistake
in how a state is kept is not repeated here. (SM3-II and 8-bit Adam have no such sum, and go step by step.) Nothing of
`minitrain.optimizers` is called.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

Matrix = Sequence[Sequence[float]]
Betas = tuple[float, float]


def each(f: Callable[..., float], *matrices: Matrix) -> Matrix:
    """A function of the numbers in the same place."""
    return [[f(*numbers) for numbers in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def norm(x: Matrix) -> float:
    return math.sqrt(math.fsum(number**2 for row in x for number in row))


def rms(x: Matrix) -> float:
    return norm(x) / math.sqrt(sum(map(len, x)))


def mean(gradients: Sequence[Matrix], beta: float, power: int) -> Matrix:
    """Σ (1 − β) β^(t−i) gᵢᵖ / (1 − βᵗ): the bias-corrected running mean after the last of t gradients."""
    t = len(gradients)
    weights = [(1 - beta) * beta ** (t - i) / (1 - beta**t) for i in range(1, t + 1)]
    return each(lambda *g: sum(weight * one**power for weight, one in zip(weights, g, strict=True)), *gradients)


def adam(theta: Matrix, gradients: Sequence[Matrix], lr: float, betas: Betas, eps: float) -> list[Matrix]:
    """θ after each step: Kingma & Ba 2015, algorithm 1."""
    found = []
    for t in range(1, len(gradients) + 1):
        m, v = (mean(gradients[:t], beta, power) for beta, power in zip(betas, (1, 2), strict=True))
        theta = each(lambda x, m, v: x - lr * m / (math.sqrt(v) + eps), theta, m, v)
        found.append(theta)
    return found


def lamb(
    x: Matrix, gradients: Sequence[Matrix], lr: float, betas: Betas, eps: float, decay: float, phi: Betas
) -> list[Matrix]:
    """x after each step: You et al. 2020, algorithm 2."""
    found = []
    for t in range(1, len(gradients) + 1):
        m, v = (mean(gradients[:t], beta, power) for beta, power in zip(betas, (1, 2), strict=True))
        update = each(lambda x, m, v: m / (math.sqrt(v) + eps) + decay * x, x, m, v)
        length = lr * min(max(norm(x), phi[0]), phi[1]) / norm(update)
        x = each(lambda x, u, length=length: x - length * u, x, update)
        found.append(x)
    return found


def lars(
    w: Matrix, gradients: Sequence[Matrix], lrs: Sequence[float], momentum: float, decay: float, eta: float
) -> list[Matrix]:
    """w after each step: You et al. 2017, algorithm 1; each step has its own global rate."""
    found: list[Matrix] = []
    steps: list[Matrix] = []
    for g, lr in zip(gradients, lrs, strict=True):
        rate = lr * eta * norm(w) / (norm(g) + decay * norm(w))
        steps.append(each(lambda g, w, rate=rate: rate * (g + decay * w), g, w))
        ages = range(len(steps) - 1, -1, -1)
        w = each(lambda w, *s, ages=ages: w - sum(momentum**a * x for a, x in zip(ages, s, strict=True)), w, *steps)
        found.append(w)
    return found


def adafactor(
    x: Matrix, gradients: Sequence[Matrix], lr: float, eps: Betas, d: float, factored: bool = True
) -> list[Matrix]:
    """x after each step: Shazeer & Stern 2018, algorithm 4, or 5 where nothing is factored."""
    found = []
    for t in range(1, len(gradients) + 1):
        # The weight of step i: 1 − β̂ᵢ = i^−0.8, times β̂ of all later steps.
        weights = [i**-0.8 * math.prod(1 - j**-0.8 for j in range(i + 1, t + 1)) for i in range(1, t + 1)]
        v = each(
            lambda *g, weights=weights: sum(w * (one**2 + eps[0]) for w, one in zip(weights, g, strict=True)),
            *gradients[:t],
        )
        if factored:
            rows, columns = [sum(row) for row in v], [sum(column) for column in zip(*v, strict=True)]
            v = [[row * column / sum(rows) for column in columns] for row in rows]
        u = each(lambda g, v: g / math.sqrt(v), gradients[t - 1], v)
        alpha = max(eps[1], rms(x)) * min(lr, 1 / math.sqrt(t)) / max(1.0, rms(u) / d)
        x = each(lambda x, u, alpha=alpha: x - alpha * u, x, u)
        found.append(x)
    return found


def sm3_i_bounds(gradients: Sequence[Matrix]) -> Matrix:
    """ν of SM3-I: Σ of the largest squares of the row, or of the column if that is less. Anil et al. 2019."""
    rows = [sum(max(g**2 for g in row) for row in history) for history in zip(*gradients, strict=True)]
    by_column = [list(zip(*g, strict=True)) for g in gradients]
    columns = [sum(max(g**2 for g in column) for column in history) for history in zip(*by_column, strict=True)]
    return [[min(row, column) for column in columns] for row in rows]


def sm3_ii_bounds(gradients: Sequence[Matrix]) -> Matrix:
    """ν of SM3-II: the smaller of the largest in the row and in the column of the step before, plus g²."""
    if not gradients:
        return []
    *before, g = gradients
    old = sm3_ii_bounds(before) or each(lambda g: 0.0, g)
    rows, columns = [max(row) for row in old], [max(column) for column in zip(*old, strict=True)]
    return [
        [min(row, column) + number**2 for column, number in zip(columns, numbers, strict=True)]
        for row, numbers in zip(rows, g, strict=True)
    ]


def sm3(w: Matrix, gradients: Sequence[Matrix], lr: float, bounds: Callable[[Sequence[Matrix]], Matrix]):
    """w after each step."""
    found = []
    for t in range(1, len(gradients) + 1):
        w = each(lambda w, g, nu: w - lr * g / math.sqrt(nu), w, gradients[t - 1], bounds(gradients[:t]))
        found.append(w)
    return found


def table(signed: bool) -> list[float]:
    """The values of 8-bit states: decade by decade the middles of 2ᵏ equal parts; then 0 and 1."""
    values = [0.0, 1.0]
    for decade in range(7):
        parts = 2 ** (6 - decade) if signed else 2 ** (7 - decade)
        edges = [0.1 + 0.9 * part / parts for part in range(parts + 1)]
        middles = [10**-decade * (low + high) / 2 for low, high in zip(edges[:-1], edges[1:], strict=True)]
        values += middles + [-middle for middle in middles if signed]
    return sorted(map(single, values))


def single(x: float) -> float:
    """The nearest number in float32."""
    return struct.unpack("f", struct.pack("f", x))[0]


def rounded(x: Matrix, values: Sequence[float], block: int) -> Matrix:
    """As it comes back from 8 bits: of each block the largest magnitude, times the nearest of all values."""
    flat, back = [number for row in x for number in row], []
    for start in range(0, len(flat), block):
        scale = single(max(map(abs, flat[start : start + block])))
        back += [
            single(scale * min(values, key=lambda value, n=n, scale=scale: abs(value - n / scale)))
            for n in flat[start : start + block]
        ]
    numbers = iter(back)
    return each(lambda _: next(numbers), x)


def adam8bit(
    theta: Matrix, gradients: Sequence[Matrix], lr: float, betas: Betas, eps: float, block: int
) -> list[Matrix]:
    """θ after each step of Adam whose moments are rounded after it: Dettmers et al. 2021, §2."""
    (b1, b2), found = betas, []
    m = v = each(lambda x: 0.0, theta)
    for t, g in enumerate(gradients, 1):
        m = each(lambda m, g: b1 * m + (1 - b1) * g, m, g)
        v = each(lambda v, g: b2 * v + (1 - b2) * g * g, v, g)
        theta = each(lambda x, m, v, t=t: x - lr * m / (1 - b1**t) / (math.sqrt(v / (1 - b2**t)) + eps), theta, m, v)
        m, v = rounded(m, table(signed=True), block), rounded(v, table(signed=False), block)
        found.append(theta)
    return found
