"""Spikes: a loss that does not belong to the curve before it.

**Idea.** The loss of a step varies with its samples. A spike lies far above what the steps before it had, measured by
how much those varied. Their mean and standard deviation would not do: one spike among them raises both so much that
the next is missed. The median, and the median distance from it, do not move until half of the steps are spikes.

**Source.** Hampel 1974 for the median absolute deviation (MAD); Iglewicz & Hoaglin 1993, §3, for the score. Chowdhery
et al. 2022, "PaLM", §5.1, for spikes in pretraining, in spite of clipping.
**Sent.** Nothing: the mean loss is the same on all ranks, so all find the same spikes.
**Cost.** Two sorts of some dozens of numbers per step. Where spikes are frequent, a smaller β₂ of AdamW, 0.95 in place
of 0.999, is the usual cure (Wortsman et al. 2023). Also called loss-spike detection, Hampel filter.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

NORMAL = 1.4826  # standard deviations of a normal distribution in its MAD: 1/Φ⁻¹(3/4)


class Spikes:
    """`seen(loss)` after every step.

    The last `window` losses say what is usual, once half of them are there. A spike is
    `threshold` standard deviations above their median.
    """

    def __init__(self, window: int = 64, threshold: float = 6.0):
        assert window >= 4 and threshold > 0, f"invalid: {window=}, {threshold=}"
        self.window, self.threshold = window, threshold
        self.usual: deque[float] = deque(maxlen=window)

    def limit(self) -> float:
        """The loss above which the next one is a spike."""
        # A run's first losses fall too fast to say what is usual.
        if 2 * len(self.usual) < self.window:
            return math.inf
        middle = median(self.usual)
        deviation = NORMAL * median(abs(loss - middle) for loss in self.usual)
        return middle + self.threshold * deviation

    def seen(self, loss: float) -> bool:
        """Whether this loss is a spike. If not, it belongs to what is usual from now on."""
        # NaN is above no limit, and not below it either.
        spike = not loss <= self.limit() or not math.isfinite(loss)
        if not spike:
            self.usual.append(loss)
        return spike


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
