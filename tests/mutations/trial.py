"""One mutation tried: which claims turn false by it, or whether the test that it names fails."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from minitrain.ranks import Ranks
from minitrain.ranks.failures import RanksError
from tests.mutations import Mutation, meant_by, rows_with

PATIENCE = 300  # seconds that a test may take


@dataclass(frozen=True)
class Trial:
    """What came of a mutation.

    Attributes:
        mutation: The mistake.
        found: Whether each claim turned false, or the test failed, that it names.
        told: By what it was found; where it was not, what happened instead.
    """

    mutation: Mutation
    found: bool
    told: str


def try_it(ranks: Ranks, mutation: Mutation) -> Trial:
    """Run the mutation's demo on these ranks, or its test in a process of its own, with the mistake in it."""
    if mutation.test:
        return _try_test(mutation)
    try:
        rows = ranks.run(rows_with, mutation)[0]
    except RanksError as error:
        return Trial(mutation, False, f"no claim: an error, {str(error).splitlines()[-1]}")
    broken = [row.claim.what for row in rows if row.holds is False]
    claims = [row.claim.what for row in rows]
    named = [[what for what in meant_by(name, claims) if what in broken] for name in mutation.claims]
    if all(named):
        told = " and ".join(f"the claim “{found[0]}”" for found in named)
        more = f", and {len(broken) - len(named)} more" if len(broken) > len(named) else ""
        return Trial(mutation, True, told + more)
    missed = [name for name, found in zip(mutation.claims, named, strict=True) if not found]
    return Trial(mutation, False, f"no claim {missed}; false are {broken or 'none'}")


def _try_test(mutation: Mutation) -> Trial:
    # 1: tests were run and failed. Anything else, such as no such test, finds nothing.
    code = _pytest(mutation.test, "-p", "tests.mutations.plugin", MINITRAIN_MUTATION=repr(mutation))
    told = f"the test {mutation.test} (pytest ended with {code})"
    if code == 1 and not _passes(mutation.test):
        return Trial(mutation, False, f"{told}, which fails without the mistake, too")
    return Trial(mutation, code == 1, told)


@cache  # each test once, however many mutations name it
def _passes(test: str) -> bool:
    """Whether the test passes without a mistake; else that it fails with one says nothing."""
    return _pytest(test) == 0


def _pytest(test: str, *options: str, **variables: str) -> int:
    # Shapes are not checked: the plugin imports our modules before they could be, and pytest would refuse to begin.
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--everything", "--jaxtyping-packages=", *options, test]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE).returncode
