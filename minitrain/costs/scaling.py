"""Speed-up and scaling efficiency: what n devices gain over one, and where the rest is lost.

n, devices; t₁ (`alone`), seconds that one device would take for a step of all; s (`serial`), the part of a time in
which nothing is divided; M, micro-batches of f seconds each. Total speed = that of one device · n · efficiency.
"""

from __future__ import annotations

from math import ceil

from minitrain.costs import checkpointing


def amdahl(serial: float, devices: float) -> float:
    """1/(s + (1−s)/n): the most that n devices speed up the same work, s being a part of t₁ (Amdahl 1967)."""
    return 1 / (serial + (1 - serial) / devices)


def gustafson(serial: float, devices: float) -> float:
    """s + (1−s)n: speed-up for work that grows with n, s being a part of the time of n devices (Gustafson 1988)."""
    return serial + (1 - serial) * devices


def step_time(pieces: int, devices: int, each: float, message: float = 0.0, serial: float = 0.0) -> float:
    """⌈M/n⌉f + c + o: the busiest device's micro-batches, a message that nothing hides, and work that all do alike."""
    return ceil(pieces / devices) * each + message + serial


def uneven(pieces: int, devices: int, each: float) -> float:
    """(⌈M/n⌉ − M/n)f: seconds for which the mean device waits for those that have one piece more."""
    return (ceil(pieces / devices) - pieces / devices) * each


def repeated(serial: float, devices: int) -> float:
    """(1 − 1/n)o: of o seconds of work that all devices do alike, those beyond a share of it."""
    return (1 - 1 / devices) * serial


def efficiency(alone: float, devices: int, *lost: float, kept: float = 1.0) -> float:
    """g · (t₁/n) / (t₁/n + lost): of n devices' time, the part that one device would have needed as well.

    Args:
        alone: t₁.
        devices: n.
        lost: Seconds in each step of a device: repeated and uneven work, a pipeline's bubble, exposed messages.
        kept: g, the part of all steps that no failure undoes (`kept`).
    """
    return kept * (alone / devices) / (alone / devices + sum(lost))


def kept(devices: int, hours: float, saving: float, restart: float) -> float:
    """Goodput of n devices that fail every `hours` each, with the best interval between saves (Daly 2006).

    Args:
        devices: n; any of them stops all, so that M = hours/n.
        hours: From failure to failure of one device.
        saving: Seconds that a checkpoint takes.
        restart: Seconds of a restart.
    """
    mean = 3600 * hours / devices
    return checkpointing.goodput(checkpointing.optimum(saving, mean), saving, restart, mean)
