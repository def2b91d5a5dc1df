"""Learning-rate schedules: how long a step is, from the first to the last.

**Idea.** Adam's first steps rest on few gradients, so the rate rises from nearly nothing (warm-up). Near the end, much
of the loss that remains is noise of small batches, which shorter steps average out, so the rate falls. A cosine has to
know its end from the start. Warm-up, stable, decay (WSD) stays at the peak and falls only over the last steps: a short
decay from any checkpoint of the stable part gives a finished model, and the same run goes on without it.

**Source.** Loshchilov & Hutter 2017, "SGDR", §3, and Brown et al. 2020, appendix B, for the cosine to a tenth; Hu et
al. 2024, "MiniCPM", §4, for WSD; Hägele et al. 2024, §3, for its decay as 1 − √x.
**Cost.** A cosine that should have been longer is run again. Also called trapezoidal schedule, cooldown (WSD's decay).

Each function returns a factor of the peak rate, as `torch.optim.lr_scheduler.LambdaLR` takes it; steps count from 0.
"""

from __future__ import annotations

import math


def warm_up(step: int, warmup: int) -> float:
    """1/(w+1), 2/(w+1), …, and 1 from step w on."""
    return min(1.0, (step + 1) / (warmup + 1))


def done(step: int, first: int, last: int) -> float:
    """The fraction of the way from step `first` to step `last`: 0 before, 1 after."""
    return min(1.0, max(0.0, (step - first) / max(1, last - first)))


def cosine(step: int, steps: int, warmup: int, least: float = 0.1) -> float:
    """Half a cosine after the warm-up, from 1 down to `least`."""
    part = done(step, warmup, steps)
    # 1 at part 0, 0 at part 1, and flat at both.
    return warm_up(step, warmup) * (least + (1 - least) * (1 + math.cos(math.pi * part)) / 2)


def constant(step: int, warmup: int) -> float:
    """The peak after the warm-up, forever."""
    return warm_up(step, warmup)


def warmup_stable_decay(step: int, steps: int, warmup: int, decay: int) -> float:
    """The peak after the warm-up, and 1 − √x over the last `decay` steps.

    Before them nothing depends on `steps`, so a run may decide late how long it will be.
    """
    # Else the decay would begin below the peak.
    assert warmup + decay <= steps, f"warmup={warmup} and decay={decay} do not fit into steps={steps}"
    part = done(step, steps - decay, steps)
    return warm_up(step, warmup) * (1 - math.sqrt(part))


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
