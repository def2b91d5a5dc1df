"""Scaling: the learning rate of a batch k times as large, and the first steps towards it.

**Idea.** More ranks make a larger batch and fewer steps, so each step has to go farther. The mean gradient of k batches
is as long as that of one, but less noisy. *Linear* scaling takes k times the rate: one step then goes as far as k steps
did. *Square-root* scaling takes √k times the rate: a step is then as noisy as before. In the first steps gradients
change fast, and a large rate would come too early. So the rate is warmed up (`craft/schedules.py`).

**Source.** Goyal et al. 2017, §2.1 and §2.2 (linear, SGD, gradual warm-up); Krizhevsky 2014 (both rules). You et al.
2020 take the square root with LAMB; Malladi et al. 2022 derive it for Adam, whose β and ε change as well.
"""

from __future__ import annotations

import math


def linear(lr: float, batch: int, base: int) -> float:
    """The rate of a batch if `lr` suits batches of `base` examples: the distance per example stays the same."""
    return lr * batch / base


def square_root(lr: float, batch: int, base: int) -> float:
    """The rate of a batch if `lr` suits batches of `base` examples: the noise of a step stays the same."""
    # A mean over k times as many examples has 1/k of the variance, and a rate of √k multiplies it by k.
    return lr * math.sqrt(batch / base)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
