"""The picture of a layout shows the numbers of the dry run and of the model of time."""

from __future__ import annotations

import pytest

from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs.memory import GB
from minitrain.costs.roofline import MACHINES
from minitrain.planning.full.step_picture import picture
from minitrain.planning.full.time_model import Cluster, step_time
from minitrain.planning.plan import Coordinate, predict


def test_bars_end_where_their_sums_are():
    model, layout, steps = Model("gpt2"), Layout(2, 4, 2, microbatches=4, recompute="full"), Steps(batch=64)
    cluster = Cluster(MACHINES["A100 80 GB"])
    held, timetable, bar = picture(model, layout, steps, cluster).axes
    for rank in range(4):
        parts = [part for part in held.patches if part.get_x() < rank < part.get_x() + part.get_width()]
        total = sum(predict(model, layout, steps, Coordinate(rank)).held.values())
        assert max(part.get_y() + part.get_height() for part in parts) == pytest.approx(total / GB)
        # Each part begins where the one below ends.
        tops = sorted((part.get_y(), part.get_y() + part.get_height()) for part in parts)
        assert all(after[0] == pytest.approx(before[1]) for before, after in zip(tops, tops[1:], strict=False))
    seconds = step_time(model, layout, steps, cluster)
    assert max(part.get_x() + part.get_width() for part in bar.patches) == pytest.approx(seconds.step)
    drawn = [path.get_extents() for rank in timetable.collections for path in rank.get_paths()]
    assert {round((each.y0 + each.y1) / 2) for each in drawn} == {0, 1, 2, 3} and min(each.x0 for each in drawn) == 0
    # 4 micro-batches, forward and backward, on each of 4 ranks.
    assert len(drawn) == 4 * 4 * 2
