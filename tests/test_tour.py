"""The tour as its user starts it: on four ranks it claims what the site's page shows, and all of it holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minitrain.lessons import tour
from minitrain.lessons.claims import Claim, merge

ROOT = Path(__file__).parents[1]
TOLD = ("module", "what", "formula", "unit", "source", "how", "relation", "holds")
NUMBERS = ("predicted", "tolerance", "absolute")


def read(file):
    return json.loads(file.read_text("utf-8"))["claims"]


def told(claims):
    """What two runs tell alike, whatever the processor: all but the last digits of some measured values."""
    return [{key: claim[key] for key in (*TOLD, *NUMBERS)} | {"measured": measured(claim)} for claim in claims]


def measured(claim):
    """Bytes and messages that must be exact, and a paper's figures; of other values, whether they are 0.

    A distance that is 0 in one run and not in the other has been measured between a thing and itself.
    """
    counted = claim["how"] == "counted" and claim["unit"] in ("B", "messages")
    exact = claim["how"] == "published" or (counted and not claim["tolerance"] and not claim["absolute"])
    return claim["measured"] if exact else claim["measured"] == 0


def near(claims):
    """The same, for a comparison in which numbers may differ after the sixth digit, which is all that the page shows.

    Some predictions are what one device computes, whose last digits depend on the processor, as do those of normal
    random numbers.
    """
    found = told(claims)
    for claim in found:
        for name in NUMBERS:
            if isinstance(claim[name], float):
                # Not pytest's own 1e-12 besides: bounds are smaller.
                claim[name] = pytest.approx(claim[name], rel=1e-6, abs=0)
    return found


@pytest.mark.slow("every demo on four ranks, and two trainings: five minutes")
@pytest.mark.timeout(1800)
def test_the_tour_claims_what_the_page_shows(tmp_path):
    file = tmp_path / "claims.json"
    command = [sys.executable, "-m", "minitrain.tour", "--ranks=4", f"--json={file}"]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shown = read(ROOT / "docs" / "claims.json")
    assert f"{len(shown)} of {len(shown)} claims hold on 4 ranks." in ended.stdout
    assert told(read(file)) == near(shown), "`make claims` rewrites docs/claims.json"


def test_a_claim_that_was_weakened_is_not_the_page_s():
    def claim(measured, **others):
        found = Claim("w", "f", **{"predicted": 1e-14, "unit": "1", "relation": "<=", **others}, measured=measured)
        return [merge("m", [[found]])[0].to_json()]

    page = claim(3e-15, how="compared")
    assert told(claim(4e-15, how="compared", predicted=1.0000001e-14)) == near(page)
    for other in (
        claim(0.0, how="compared"),  # of a thing from itself
        claim(3e-15, how="compared", predicted=1e-13),
        claim(3e-15, how="compared", tolerance=1e-3),
        claim(3e-15, how="compared", absolute=1e-14),
        claim(3e-15, how="compared", relation=">="),
    ):
        assert told(other) != near(page)
    count = {"unit": "B", "predicted": 100}
    assert told(claim(90, **count)) == near(claim(90, **count)) != told(claim(80, **count))


def test_empty_data(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(SystemExit, match="has no text: 1 empty and 0 binary files"):
        tour.main(str(tmp_path / "empty.txt"))


def test_the_summary_counts_what_the_table_does_not_show():
    rows = merge("m", [[Claim("w", "n", 1, 1), Claim("v", "n", 1, 2), Claim.needs_ranks(4, "u", "n")]])
    counts = "1 of 3 claims hold on 1 rank, 1 does not, 1 needs more ranks."
    assert tour.summary(rows, 3, 1) == counts
    assert tour.summary(rows, 1, 1).startswith(f"{counts} The table shows one of each demo")
