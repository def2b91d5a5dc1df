"""Pictures of timetables: bars where the actions are, numbers in them, and the same as data."""

from __future__ import annotations

import json
from fractions import Fraction

from matplotlib.colors import to_rgb

from minitrain.pipeline_parallel.full import drawing
from minitrain.pipeline_parallel.full.simulator import simulate
from minitrain.pipeline_parallel.schedules import (
    one_f_one_b,
    pipedream,
    two_buffered,
    zero_bubble_h1,
)


def bars(figure) -> set[tuple]:
    """Row, start, end, color and hatch of each bar."""
    found = set()
    for pieces in figure.axes[0].collections:
        for path in pieces.get_paths():
            box = path.get_extents()
            look = tuple(round(float(part), 3) for part in pieces.get_facecolor()[0][:3])
            found.add((round((box.y0 + box.y1) / 2), round(box.x0, 6), round(box.x1, 6), look, pieces.get_hatch()))
    return found


def words(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_bar_for_each_action_where_it_is():
    timetable = simulate(zero_bubble_h1(2, 3), 1, 2, Fraction(1, 2))
    figure = drawing.draw(timetable, "a title", "ms")
    expected = set()
    for rank, row in enumerate(timetable.slots):
        for action, start, end in row:
            _, color, hatch = drawing.KINDS[action.kind]
            look = tuple(round(part, 3) for part in to_rgb(color))
            expected.add((rank, float(start), float(end), look, hatch or None))
    assert {(*bar[:4], bar[4] or None) for bar in bars(figure)} == expected
    assert words(figure) == ["forward", "backward for the input", "backward for the weights"]
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
    assert (axes.get_title(), axes.get_xlabel()) == ("a title", "ms (number: micro-batch)")
    assert sorted(text.get_text() for text in axes.texts) == sorted("012" * 6)


def test_json_by_hand():
    data = drawing.as_json(simulate(one_f_one_b(2, 2), 1, Fraction(3, 2), Fraction(1, 2)))
    assert json.loads(json.dumps(data)) == {
        "schedule": "1f1b",
        "ranks": 2,
        "microbatches": 2,
        "chunks": 1,
        "placement": [0, 1],
        "makespan": 9,
        "longest_span": 9,
        "ideal": 6,
        "bubble_over_ideal": 0.5,
        "bubble_over_total": 0.333333,
        "spans": [9, 6],
        "idle": [3, 3],
        "peak_in_flight": [2, 1],
        "peak_before_weights": [2, 1],
        "rows": [
            [[0, "F", 0, 0, 1], [0, "F", 1, 1, 2], [0, "B", 0, 4, 6], [0, "B", 1, 7, 9]],
            [[1, "F", 0, 1, 2], [1, "B", 0, 2, 4], [1, "F", 1, 4, 5], [1, "B", 1, 5, 7]],
        ],
    }


def test_versions_are_colors():
    """Rank 1, the last, updates after each backward; on rank 0 a forward uses weights one update older."""
    figure = drawing.draw(simulate(pipedream(2, 3), 1, 1, 1))
    colors = {
        (piece.get_hatch(), round(path.get_extents().x0)): tuple(round(float(part), 3) for part in face[:3])
        for piece in figure.axes[0].collections
        for path, face in zip(piece.get_paths(), piece.get_facecolor(), strict=True)
        if round(path.get_extents().y0 + 0.4) == 1
    }
    expected = {("", 1): 0, ("///", 2): 0, ("", 4): 1, ("///", 5): 1, ("", 7): 2, ("///", 8): 2}
    looks = {key: tuple(round(part, 3) for part in to_rgb(drawing.VERSIONS[used])) for key, used in expected.items()}
    assert {(hatch or "", start): look for (hatch, start), look in colors.items()} == looks
    assert words(figure) == ["forward", "backward", "version 0", "1", "2"]


def test_versions_in_json():
    timetable = simulate(two_buffered(2, 4), 1, 1, 1)
    data = drawing.as_json(timetable)
    assert data["rows"][1][:3] == [[1, "F", 0, 1, 2, 0], [1, "B", 0, 2, 4, 0], [1, "F", 1, 4, 5, 0]]
    assert data["versions_kept"] == [2, 2] and data["staleness"] == [1, 1] and data["mixed"] == 0
    assert drawing.describe(timetable) == (
        "Timetable of 2bw: 2 ranks, 4 micro-batches. A step takes 15, and the busiest rank idles 20.0 % of it. "
        "The most micro-batches held at once: 2, 1 on the ranks in order. "
        "Versions of the weights that the ranks keep, in order: 2, 2."
    )
