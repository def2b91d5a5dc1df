"""Spikes, and what comes after them."""

from __future__ import annotations

import math
import random

import pytest

from minitrain.craft.rewind import SpikeAgain, train
from minitrain.craft.spikes import Spikes


def losses(count, seed=0):
    drawn = random.Random(seed)
    return [2 + drawn.gauss(0, 0.1) for _ in range(count)]


@pytest.mark.parametrize("bad", (math.nan, math.inf, -math.inf))
def test_what_is_no_number_always_is(bad):
    spikes = Spikes()
    assert spikes.seen(bad) and not spikes.usual


def test_usual_losses_are_none_and_a_falling_curve_neither():
    spikes = Spikes(window=64, threshold=6)
    falling = [loss + 3 * math.exp(-number / 30) for number, loss in enumerate(losses(500))]
    assert not any(spikes.seen(loss) for loss in falling)
    assert spikes.seen(2 + 6 * 0.1 * 2)
    assert not spikes.seen(2.2)


class Counter:
    """A training whose state is a list of the batches that it has seen."""

    def __init__(self, high=()):
        self.seen, self.high = [], set(high)

    def step(self, number):
        self.seen.append(number)
        return 9.0 if number in self.high else 2 + number % 5 / 100

    def load(self, state):
        self.seen = list(state)


@pytest.mark.parametrize("high", ([], [30], [31, 32], [30, 45, 59], [39, 40], [31, 33, 41, 43]))
def test_a_run_is_as_if_spikes_had_never_been_there(high):
    training = Counter(high)
    spikes = Spikes(window=16)
    found, left_out = train(60, training.step, lambda: training.seen, training.load, spikes)
    assert sorted(left_out) == high
    assert training.seen == list(found) == [number for number in range(60) if number not in high]
    assert list(spikes.usual) == list(found.values())[-16:], "steps that were done again are in the window once"


def test_it_gives_up_after_two_rewinds_to_one_checkpoint():
    training = Counter(range(25, 60))
    with pytest.raises(SpikeAgain, match="batch 27: loss 9, a spike after 2 rewinds to batch 20"):
        train(60, training.step, lambda: training.seen, training.load, Spikes(window=16))
