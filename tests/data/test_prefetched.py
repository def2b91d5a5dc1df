"""Batches that are read ahead are those that are asked for."""

from __future__ import annotations

import threading

import pytest
import torch

from minitrain.data.prefetched import Prefetched
from minitrain.data.text import Samples, Text


class Watched:
    """Samples that note what is asked of them, and by which thread."""

    def __init__(self, broken=()):
        self.samples = Samples(Text.load().training, 8, seed=3)
        self.seq, self.broken, self.asked = 8, broken, []

    def take(self, samples):
        samples = list(samples)
        self.asked.append((samples, threading.current_thread().name))
        if set(samples) & set(self.broken):
            raise ValueError("shard 3 is damaged")
        return self.samples.take(samples)


def test_the_next_batch_is_read_by_a_thread_meanwhile():
    watched = Watched()
    ahead = Prefetched(watched, batch=4)
    for begin in (0, 4, 8):
        asked = range(begin + 2, begin + 4)  # the second of two ranks
        for found, expected in zip(ahead.take(asked), watched.samples.take(asked), strict=True):
            assert torch.equal(found, expected)
    ahead._thread.shutdown()
    assert [samples for samples, _ in watched.asked] == [[2, 3], [6, 7], [10, 11], [14, 15]]
    assert {thread for _, thread in watched.asked} == {"prefetch_0"}


def test_others_are_read_when_they_are_asked_for():
    ahead = Prefetched(Watched(), batch=4)
    ahead.take(range(0, 4))
    for asked in (range(40, 44), [7, 5], range(44, 48)):
        expected = ahead.samples.samples.take(asked)
        assert all(torch.equal(a, b) for a, b in zip(ahead.take(asked), expected, strict=True))


def test_what_cannot_be_read_is_an_error_of_the_step_that_needs_it():
    ahead = Prefetched(Watched(broken=[5]), batch=4)
    ahead.take(range(0, 4))
    with pytest.raises(ValueError, match="shard 3 is damaged"):
        ahead.take(range(4, 8))
