"""Successive halving: who survives, how long each is tried, and ties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import planning as costs
from minitrain.planning.halving import successive_halving


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(2, 5), st.integers(0, 300))
def test_the_best_wins_when_scores_do_not_change(scores, eta, more):
    tried = []

    def run(candidate, steps):
        tried.append((candidate, steps))
        return scores[candidate]

    budget = 7 * len(scores) + more
    best, rounds = successive_halving(range(len(scores)), run, budget, eta)
    assert scores[best] == min(scores) and best == scores.index(min(scores))
    assert rounds == costs.halving_rounds(len(scores), budget, eta)
    assert len(tried) == sum(count for count, _ in rounds)
    assert sum(steps for _, steps in tried) == sum(count * steps for count, steps in rounds) <= budget


def test_equals_keep_their_order():
    assert successive_halving("abcd", lambda *_: 0.0, 8)[0] == "a"
