"""One clock for all ranks: nothing arrives before it was sent, and a rank that waits is seen waiting.

An event comes one tick after the rank's last one, and an arrival also after the start of what it needs: of the send, or
of all ranks' part in a collective. Seconds would not do: they differ from run to run, and between machines.

**Source.** Lamport 1978, "Time, Clocks, and the Ordering of Events in a Distributed System".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Event = dict[str, Any]


def ticks(ranks: Sequence[Sequence[Event]], work: Callable[[Event], int] = lambda event: 1) -> list[list[int]]:
    """The tick of each event of each rank, from 0 on.

    Args:
        ranks: The events of each rank, in their order.
        work: The ticks that an event takes.

    Raises:
        AssertionError: Something arrives that nobody has sent.
    """
    times: list[list[int]] = [[] for _ in ranks]
    started: dict[str, dict[int, int]] = {}  # a communication -> the ranks that have started it, and when
    moved = True
    while moved:
        moved = False
        for rank, events in enumerate(ranks):
            while len(times[rank]) < len(events):
                number = len(times[rank])
                event, last = events[number], events[number - 1] if number else None
                # A start, and to begin to wait for it, are one call in the source.
                together = last is not None and last["kind"] == "starts" and event["kind"] in ("starts", "waits")
                time = times[rank][-1] + (0 if together else work(last)) if last is not None else 0
                if event["kind"] == "starts" and event["verb"] != "receive":
                    started.setdefault(event["key"], {})[rank] = time
                if event["kind"] == "arrives":
                    here = started.get(event["key"], {})
                    if len(here) < (len(event["members"]) if event["peer"] is None else 1):
                        break  # the others first
                    time = max(time, 1 + max(here.values()))
                times[rank].append(time)
                moved = True
    assert [*map(len, times)] == [*map(len, ranks)], "something arrives that nobody has sent"
    return times
