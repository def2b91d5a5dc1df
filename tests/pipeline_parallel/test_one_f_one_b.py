"""1F1B's small form: one device's bits and the full form's, few micro-batches held, and no message unasked."""

from __future__ import annotations

import pytest

from minitrain.ranks.failures import RanksError
from tests.pipeline_parallel.small import (
    by_strict_rules,
    counts,
    in_a_group,
    like_one_device_and_full_form,
    lone_exchange,
    most_held,
)


@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_loss_gradients_and_their_norm_are_those_of_one_device_and_of_the_full_form(ranks, size):
    ranks(size).run(like_one_device_and_full_form, "one_f_one_b")


def test_ranks_are_those_of_the_group(ranks):
    ranks(4).run(in_a_group, "one_f_one_b")


def test_no_more_micro_batches_are_held_than_stages_follow(ranks):
    n = 4
    expected = [{count: min(count, n - rank) for count in counts(n)} for rank in range(n)]
    assert ranks(n).run(most_held, "one_f_one_b") == expected


@pytest.mark.parametrize("size", (2, 4))
def test_no_message_waits_for_one_that_waits_for_it(ranks, size):
    ranks(size).run(by_strict_rules, "one_f_one_b")


def test_break_it_lone_sends_in_place_of_an_exchange_wait_for_each_other(ranks):
    with pytest.raises(RanksError, match="a lone send meets a send"):
        ranks(2).run(by_strict_rules, "one_f_one_b", lone_exchange)
