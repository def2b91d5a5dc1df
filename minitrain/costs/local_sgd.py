"""Averaging every H-th step: bytes by kind of link, and where ranks settle whose data differ.

n ranks on N nodes of L; S bytes of parameters, w per element; H steps between two averages; T steps. The second part is
about losses ½ Σ aᵣ (θ − cᵣ)², one for each rank r, whose mean is to be minimized.
"""

from __future__ import annotations

from collections.abc import Sequence


def rounds(steps: int, every: int) -> int:
    """⌊T/H⌋ averages in T steps, for H ≥ 1."""
    if every < 1:
        raise ValueError(f"every={every} must be at least 1, the number of steps between two averages")
    return steps // every


def averaged_bytes(size: int, steps: int, every: int) -> int:
    """⌊T/H⌋ S: what goes into all-reduces in T steps of local SGD or DiLoCo (Stich 2019, §1; Douillard et al. 2023)."""
    return rounds(steps, every) * size


def bytes_within(size: int, padded: int, steps: int, every: int) -> tuple[int, int]:
    """T · S bytes into all-reduces and ⌊T/H⌋ · S into all-gathers within a node (Lin et al. 2020, appendix D).

    `padded` is S, filled up to a multiple of L elements.
    """
    return steps * size, rounds(steps, every) * padded


def bytes_across(elements: int, item_size: int, steps: int, every: int, local: int) -> int:
    """⌊T/H⌋ · ⌈elements/L⌉ · w: what goes into this rank's all-reduces across nodes."""
    return rounds(steps, every) * -(-elements // local) * item_size


def outer_bytes(size: int) -> int:
    """2S: DiLoCo's parameters of the last round, and the momentum of its outer optimizer."""
    return 2 * size


def settles_at(curvatures: Sequence[float], centers: Sequence[float], lr: float, every: int) -> float:
    """Σ (1 − qᵣ) cᵣ / Σ (1 − qᵣ) with qᵣ = (1 − ηaᵣ)ᴴ: where averaging every H-th step ends.

    H steps take θ to cᵣ + qᵣ (θ − cᵣ), so the mean over ranks does not change if Σ (1 − qᵣ)(θ − cᵣ) = 0. `lr` is η,
    below 1/aᵣ; `curvatures` are aᵣ, `centers` cᵣ.
    """
    moved = [1 - (1 - lr * a) ** every for a in curvatures]
    return sum(m * c for m, c in zip(moved, centers, strict=True)) / sum(moved)


def step_seconds(compute: float, network: float, every: int) -> float:
    """t + c/H: seconds of a step that computes for t, where an average of c seconds follows every H-th."""
    return compute + network / every
