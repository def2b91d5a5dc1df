"""A claim must say "holds" only when it does: a table that cannot fail would prove nothing."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from minitrain.lessons.claims import (
    PICTURED,
    Claim,
    fold,
    merge,
    picture_of,
    print_rows,
    verdict,
    write_json,
)
from minitrain.lessons.listing import demos

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


def test_merge_refuses_ranks_that_claim_different_things():
    with pytest.raises(RuntimeError, match="different claims"):
        merge("m", [[Claim("a", "f", 1, 1)], []])


def test_claims_in_a_narrow_terminal_stand_on_lines_of_their_own():
    console = Console(file=(out := io.StringIO()), force_terminal=True, width=80, color_system=None)
    waits = Claim.needs_ranks(4, "steps", "n")
    print_rows(merge("m", [[Claim("bytes", "4 · n", 4, 5, "B"), Claim("count " * 20, "n", 1, 1), waits]]), console)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[:2] == ["✗ bytes", "    4 · n · predicted 4 B · measured 5 B · counted"]
    assert lines[-2:] == ["– steps", "    n · predicted – · measured – · – (needs 4 ranks)"]
    assert max(map(len, lines)) <= 80


def test_json_has_no_nan(tmp_path):
    write_json(tmp_path / "deep" / "c.json", merge("m", [[Claim.needs_ranks(4, "steps", "n")]]), ranks=1)
    document = json.loads((tmp_path / "deep" / "c.json").read_text(), parse_constant=pytest.fail)
    assert document["ranks"] == 1 and document["claims"][0]["measured"] is None


def test_the_picture_loads_nothing_and_has_one_row_a_demo_of_a_few():
    claims = [Claim("first", "4 · n", 4, 4, "B"), Claim("second", "n", 1, 1)]
    other = merge("minitrain.zero.offload", [[Claim("third", "n", 1, 1)]])
    svg = picture_of(merge("minitrain.collectives.ring", [claims]) + other)
    ElementTree.fromstring(svg)
    assert [word in svg for word in ("url(h", "first", "second", "third")] == [False, True, False, False]


def test_the_readmes_picture_leaves_room_for_what_is_below_it():
    svg = (Path(__file__).parents[2] / "docs" / "images" / "claims.svg").read_text("utf-8")
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    assert height < 0.7 * width
    assert set(PICTURED) <= {module for module, _ in demos()}


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
