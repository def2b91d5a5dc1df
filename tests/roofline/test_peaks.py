"""The peaks: what is timed, and that the best of several counts. How fast it is, is never tested."""

from __future__ import annotations

import torch

from minitrain.roofline import peaks
from minitrain.roofline.flops import Flops

CPU = torch.device("cpu")


def test_the_best_of_several_calls_after_a_first_one(monkeypatch):
    clock = iter([0.0, 5.0, 10.0, 12.0, 20.0, 29.0])
    monkeypatch.setattr(peaks, "perf_counter", lambda: next(clock))
    calls = []
    assert peaks.best(lambda: calls.append(1), CPU, repeats=3) == 2.0
    assert len(calls) == 4


def test_what_is_timed_is_what_is_divided_by(monkeypatch):
    monkeypatch.setattr(peaks, "best", lambda run, device: run() is None or 1.0)
    with Flops() as flops:
        assert peaks.flops_per_second(CPU, size=30) == 2 * 30**3
    assert flops.total == 2 * 30**3
    assert peaks.bytes_per_second(CPU, size=1000) == 3000
