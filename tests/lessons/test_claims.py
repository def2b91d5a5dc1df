"""A claim must say "holds" only when it does: a table that cannot fail would prove nothing."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.lessons.claims import Claim, fold, merge, verdict, write_json

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(finite, finite)
def test_exact_by_default(predicted: float, measured: float):
    assert Claim("w", "f", predicted, measured).holds == (predicted == measured)


@pytest.mark.parametrize(
    ("relation", "measured", "holds"),
    [("=", 10.4, True), ("=", 10.6, False), ("=", 9.4, False), ("<=", 10.6, False), ("<=", -99, True)]
    + [(">=", 9.4, False), (">=", 99, True)],
)
def test_relations_with_relative_tolerance(relation, measured, holds):
    assert Claim("w", "f", 10, measured, relation=relation, tolerance=0.05).holds is holds


@pytest.mark.parametrize("relation", ["=", "<=", ">="])
def test_nan_never_holds(relation):
    assert Claim("w", "f", 1.0, math.nan, relation=relation, tolerance=9).holds is False
    assert Claim("w", "f", math.nan, 1.0, relation=relation).holds is False


def test_merge_shows_the_rank_that_fails():
    good, bad = Claim("w", "f", 1, 1), Claim("w", "f", 1, 2)
    (row,) = merge("minitrain.collectives.ring", [[good], [bad], [good], [bad]])
    assert (row.chapter, row.holds, row.claim.measured, row.note) == ("collectives", False, 2, "fails on rank 1,3")


def test_json_has_no_nan(tmp_path):
    write_json(tmp_path / "deep" / "c.json", merge("m", [[Claim.needs_ranks(4, "steps", "n")]]), ranks=1)
    document = json.loads((tmp_path / "deep" / "c.json").read_text(), parse_constant=pytest.fail)
    assert document["ranks"] == 1 and document["claims"][0]["measured"] is None


def test_a_folded_claim_shows_the_case_farthest_out_and_names_one_that_fails():
    cases = {name: Claim(name, "≤ 3", 3, value, relation="<=") for name, value in (("a", 1), ("b", 2), ("c", 0))}
    folded = fold("steps, in each of 3 cases", cases)
    assert (folded.what, folded.measured, folded.case) == ("steps, in each of 3 cases", 2, "")
    broken = fold("steps", {**cases, "d": Claim("d", "≤ 3", 3, 4, relation="<="), "e": Claim("e", "≤ 3", 3, 5)})
    assert (broken.holds, broken.measured, broken.case) == (False, 4, "d")
    lower = {name: dataclasses.replace(claim, predicted=-1, relation=">=") for name, claim in cases.items()}
    assert fold("steps", lower).measured == 0
    others = fold("steps", {name: Claim("", name[0], 3, 3) for name in ("S", "T", "S again")})
    assert others.formula == "S; T", "each formula once"


def test_the_table_names_the_case_that_fails():
    good = Claim("steps", "3", 3, 3)
    rows = merge("minitrain.zero.stage1", [[good], [fold("steps", {"buckets of 4": Claim("x", "3", 3, 4)})]])
    assert verdict(rows[0]) == "NO (fails on rank 1: buckets of 4)"
