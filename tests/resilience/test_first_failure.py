"""The cause among tracebacks."""

from __future__ import annotations

from minitrain.lessons.resilience.first_failure import CONSEQUENCES, HEAD
from minitrain.resilience.first_failure import Report, first, read, write


def report(rank, step, seconds, error):
    return Report(rank, f"node{rank}", step, seconds, HEAD + error)


def test_within_a_step_the_clock_decides():
    reports = [report(*each, "ValueError") for each in ((0, 7, 2.0), (1, 7, 1.0), (2, 8, 0.0))]
    assert first(reports, 3).startswith("rank 1 ")


def test_killed_ranks_write_nothing():
    reports = [report(0, 7, 2.0, CONSEQUENCES[0]), report(3, 6, 2.0, CONSEQUENCES[1])]
    assert first(reports, 4) == "rank 1, 2 left no traceback: killed, in step 6 or just before"
    assert first(reports, 4) == first(reports[::-1], 4)


def test_a_consequence_is_told_by_the_last_line(tmp_path):
    # The lost connection is mentioned above, and handled; what ended the rank is another error.
    try:
        try:
            raise ConnectionResetError("Connection reset by peer")
        except ConnectionResetError:
            raise KeyError("layer.3") from None
    except KeyError as error:
        write(tmp_path, 5, 17, error)
    (found,) = read(tmp_path)
    assert (found.rank, found.step, found.error) == (5, 17, "KeyError: 'layer.3'")
    assert not found.consequence and "test_first_failure.py" in found.traceback
