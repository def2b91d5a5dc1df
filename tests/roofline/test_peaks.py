"""The peaks: what is timed, and that the best of several counts. How fast it is, is never tested."""

from __future__ import annotations

import torch

from minitrain.lessons.pictures import roofline as pictures
from minitrain.lessons.roofline import peaks as lesson
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


def test_the_pictures_have_a_point_for_each_operation():
    roof = lesson.measured(CPU, batch=1, seq=16, hidden=64, vocabulary=50)
    flops, moved, points = lesson.of_data_sheet("H100")
    for last, found in ((roof, 6), ((flops, moved, points), 8)):
        (axes,) = pictures.rooflines({"A100": lesson.of_data_sheet("A100 80 GB"), "H100": last}).axes
        assert {text.get_text() for text in axes.texts} > last[2].keys() and len(last[2]) == found
    assert all(speed <= min(flops, 1.000001 * intensity * moved) for intensity, speed in points.values())
