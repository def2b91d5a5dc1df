"""`make mutations`: try every mutation, and show by which claim or test each is found.

python -m tests.mutations                       # all of them
python -m tests.mutations --only ring --ranks 4
"""

from __future__ import annotations

import argparse
import sys
import time

from minitrain.ranks import Ranks
from tests.mutations import all_mutations
from tests.mutations.trial import Trial, try_it


def main() -> int:
    """The command line; returns the exit status: 1 where a mutation was not found by what it names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of the symbols or demos to try")
    parser.add_argument("--ranks", type=int, default=4, help="on which the demos run")
    options = parser.parse_args()
    chosen = [m for m in all_mutations() if options.only in m.symbol or options.only in m.demo]
    trials: list[Trial] = []
    with Ranks(options.ranks, device="cpu", timeout=30) as ranks:
        for number, mutation in enumerate(chosen, 1):
            start = time.monotonic()
            trial = try_it(ranks, mutation)
            trials.append(trial)
            took = f"{time.monotonic() - start:.1f} s"
            change = f"{mutation.old.strip()} → {mutation.new.strip()}"
            print(f"{number:>3} {mutation.symbol.removeprefix('minitrain.')}: {change}", flush=True)
            print(f"    {'found' if trial.found else 'NOT FOUND'} by {trial.told} ({took})", flush=True)
    found = sum(trial.found for trial in trials)
    by_claim = sum(trial.found and not trial.mutation.test for trial in trials)
    print(f"\n{len(trials)} mutations: {found} found, {by_claim} of them by a claim")
    return 0 if found == len(trials) else 1


if __name__ == "__main__":
    sys.exit(main())
