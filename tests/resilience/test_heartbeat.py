"""The monitor and the search for slow ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minitrain.resilience.heartbeat import Monitor, beat, steps, stragglers


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


@given(st.integers(1, 9), st.integers(0, 8), st.floats(1.6, 9), st.lists(st.floats(0.9, 1.1), min_size=9, max_size=9))
def test_a_slow_rank_is_named_and_no_other(ranks, slow, factor, noise):
    # 0.9 · 1.6 is above 1.3 · 1.1, so noise hides no slow rank; and 1.1 is below 1.3 · 0.9.
    slow %= ranks
    times = {rank: [noise[rank]] * 5 for rank in range(ranks)}
    times[ranks // 2][3] = 20.0  # one long step
    assert stragglers(times) == []
    times[slow] = [factor * time for time in times[slow]]
    assert stragglers(times) == ([slow] if ranks > 1 else [])
