"""The virtual clock against times worked out by hand; the timeline's chart and trace."""

from __future__ import annotations

import torch
import torch.distributed as dist

from minitrain.comm import Timeline, VirtualClock, messages, receive, send

ALPHA, BETA = 10.0, 0.5  # a message of 8 bytes takes 10 + 4 = 14 virtual seconds
EIGHT = torch.float64


def root_to_all(world):
    box = torch.zeros(1, dtype=EIGHT)
    with VirtualClock(ALPHA, BETA) as clock:
        if world.rank == 0:
            handles = [send(box, to) for to in range(1, world.size)]
            started = clock.now  # sending goes on beside the rank's work
            for handle in handles:
                handle.wait()
            return started, clock.now
        receive(box, 0).wait()
    return clock.now


def test_sends_leave_one_after_the_other_and_do_not_stop_the_rank(ranks):
    assert ranks(3).run(root_to_all) == [(0.0, 28.0), 14.0, 28.0]


def watched(world):
    timeline = Timeline()
    with timeline.watching():
        dist.all_reduce(torch.ones(3))
        messages.exchange(torch.ones(2), 1 - world.rank, torch.empty(2), 1 - world.rank).wait()
    dist.all_reduce(torch.ones(3))
    assert all(span.end > span.start for span in timeline.spans)
    return [(span.label, span.kind) for span in timeline.spans]


def test_communications_of_a_rank_that_is_watched(ranks):
    for rank, spans in enumerate(ranks(2).run(watched)):
        other = 1 - rank
        sent = {(f"from {other}, 8 bytes", "receive"), (f"to {other}, 8 bytes", "send")}
        assert spans[0] == ("all_reduce, 12 bytes", "communicate") and set(spans[1:]) == sent
