"""Stacks, compared."""

from __future__ import annotations

import time

import pytest

from minitrain.resilience.stuck import Watchdog, place, sentence

WAITS = """No progress for 1 s:
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/train.py", line 12 in step
  File "/home/me/train.py", line 30 in <module>
"""
LOADS = """No progress for 1 s:
  File "/usr/lib/python3.11/pathlib.py", line 1044 in open
  File "/home/me/data.py", line 5 in load
  File "/home/me/train.py", line 11 in step
"""


THREADS = LOADS.replace("pathlib.py", "threading.py").replace("in open", "in wait")
SENDS = LOADS.replace("/usr/lib/python3.11/pathlib.py", "/venv/site-packages/requests/a.py").replace(
    "in open", "in send"
)
OURS, OUTER = '  File "/home/me/train.py", line 12', '  File "/home/me/ring.py", line 40 in all_gather\n'
GPU = WAITS.replace("distributed/distributed_c10d.py", "cuda/__init__.py").replace("in all_reduce", "in synchronize")


@pytest.mark.parametrize(
    ("stack", "waits", "where"),
    [
        (LOADS, False, "load at data.py line 5"),
        (WAITS, True, "all_reduce at train.py line 12"),  # below torch's decorator
        (THREADS, False, "load at data.py line 5"),  # of a loader for its threads, and not for ranks
        (THREADS.replace("/usr/lib/python3.11/threading.py", "/home/me/messages.py"), True, "wait at data.py line 5"),
        (SENDS, False, "load at data.py line 5"),  # a download
        (WAITS.replace(OURS, OUTER + OURS), True, "all_gather at train.py line 12"),  # the outermost collective
        (GPU, True, "synchronize at train.py line 12"),  # who waits for its GPU waits for others
        (WAITS + LOADS, False, "load at data.py line 5"),  # the newest dump
    ],
)
def test_places(stack, waits, where):
    assert place(stack) == (waits, f"in {where}")


def test_the_sentence():
    ranks = {0: WAITS, 1: WAITS, 2: LOADS, 3: WAITS}
    assert sentence(ranks) == (
        "ranks 0, 1, 3 wait in all_reduce at train.py line 12; rank 2 is in load at data.py line 5"
    )


def test_two_collectives_that_wait_for_each_other():
    other = WAITS.replace("in all_reduce", "in broadcast").replace("line 12", "line 19")
    assert sentence({0: other, 1: WAITS, 2: WAITS}) == (
        "ranks 1, 2 wait in all_reduce at train.py line 12; rank 0 waits in broadcast at train.py line 19"
    )


def busy(path, dumps):
    """Computes until the file has so many dumps more; those that it had before."""
    before = path.read_text().count("No progress")
    while path.read_text().count("No progress") < before + dumps:
        " ".join(map(str, range(1000)))  # a comprehension would be a frame of its own
    return before


def test_a_rank_that_computes_is_shown_and_lives(tmp_path):
    # faulthandler's timer, which reads the frames of a thread that runs, crashed such a rank.
    watchdog = Watchdog(tmp_path / "stack0", 0.02)
    before = busy(watchdog.path, 20)
    watchdog.close()
    # The first that it sees may have been taken before it was busy.
    dumps = watchdog.path.read_text().split("No progress")[before + 2 : before + 21]
    assert len(dumps) == 19
    assert all(" in busy at test_stuck.py line " in f" {place(dump)[1]}" for dump in dumps)


def test_progress_puts_a_stack_off(tmp_path):
    watchdog = Watchdog(tmp_path / "stack0", 0.5)
    for _ in range(40):
        time.sleep(0.02)
        watchdog.progress()
    watchdog.close()
    assert not watchdog.path.read_text()
