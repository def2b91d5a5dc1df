"""Rows: one for each sentence, whatever its cases; and nothing is compared that cannot be."""

from __future__ import annotations

import pytest
import torch

from minitrain.lessons.rows import Rows


def test_a_sentence_of_several_cases_is_one_row():
    rows = Rows("a paper")
    rows.add("bytes sent", "S", 8, 8, case="even")
    rows.add("bytes kept", "K", 3, 3)
    rows.add("bytes sent", "S", 9, 8, case="odd")
    sent, kept = rows.claims()
    assert (sent.what, sent.holds, sent.case, sent.source) == ("bytes sent", False, "odd", "a paper")
    assert kept.holds


@pytest.mark.parametrize("value, holds", [(1.0, True), (1.0 + 2**-20, False), (float("nan"), False)])
def test_equal_is_equal_in_every_bit(value, holds):
    rows = Rows()
    rows.equal("elements that differ", [torch.ones(3)], [torch.tensor([1.0, 1.0, value])])
    assert rows.claims()[0].holds is holds


@pytest.mark.parametrize("value, holds", [(1.5, True), (0.5, True), (1.75, False), (float("nan"), False)])
def test_near_is_within_the_bound(value, holds):
    rows = Rows()
    rows.near("distance", [torch.ones(2)] * 2, [torch.ones(2), torch.tensor([1.0, value])], 0.5, "≤ bound")
    assert rows.claims()[0].holds is holds


def test_what_cannot_be_compared_or_claimed_is_refused():
    with pytest.raises(ValueError, match=r"shapes \(3,\) and \(1,\)"):
        Rows().equal("elements that differ", torch.ones(3), torch.ones(1))
    with pytest.raises(ValueError, match="zip"):
        Rows().equal("elements that differ", [torch.ones(3)], [])
    rows = Rows()
    rows.add("bytes", "S", 4, 4, case="forward")
    with pytest.raises(ValueError, match="'bytes' is claimed twice of case='forward'"):
        rows.add("bytes", "S", 4, 4, case="forward")
