"""The monitor and the search for slow ranks."""

from __future__ import annotations

from minitrain.resilience.heartbeat import Monitor, beat, steps


def test_files(tmp_path):
    assert steps(tmp_path, 3) == [-1, -1, -1]
    beat(tmp_path, 0, 4)
    beat(tmp_path, 2, 11)
    beat(tmp_path, 0, 5)
    assert steps(tmp_path, 3) == [5, -1, 11]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beat0", "beat2"]


def test_the_slowest_is_named_only_when_all_have_stopped():
    monitor = Monitor(3, limit=10)
    assert monitor.late([4, 4, 4], 0) == []
    assert monitor.late([5, 4, 5], 5) == []
    # Rank 1 has made no step for 12 s, but the others may still be at work.
    assert monitor.late([5, 4, 5], 12) == []
    assert monitor.late([5, 4, 5], 15) == [1]
    # It goes on: all is well.
    assert monitor.late([5, 5, 5], 16) == []


def test_ranks_that_never_start():
    monitor = Monitor(2, limit=10)
    assert monitor.late([0, -1], 0) == []
    assert monitor.late([0, -1], 10) == [1]
