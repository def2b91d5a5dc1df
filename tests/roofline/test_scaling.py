"""Scaling: the lesson's claims on 8 ranks, where most numbers of ranks cannot share the batch evenly."""

from __future__ import annotations

from minitrain.lessons.roofline import scaling as lesson


def told(world):
    trial = lesson.Trial(world)
    return [claim.holds for claim in lesson.demo(world)], trial.speed_ups("strong"), trial.speed_ups("weak")


def test_one_to_eight_ranks(ranks):
    for holds, strong, weak in ranks(8).run(told):
        assert holds == 5 * [True]
        assert [*strong] == [8, 7, 6, 5, 4, 3, 2, 1]
        # Of 16 micro-batches 6 ranks have 3, as 7 have, whose ring is longer.
        assert strong[7] < strong[6]
        assert all(1 < strong[n] < weak[n] < n for n in range(2, 9))
