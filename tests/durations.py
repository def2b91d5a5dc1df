"""How long the last run of the tests took: `make durations`.

python -m tests.durations           # the slowest files, tests and fixtures
python -m tests.durations --parts   # each part of `make everything`, and those that grew if it took too long
python -m tests.durations --keep    # from now on, compare with this run
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
LAST = ROOT / ".pytest_cache" / "durations.json"  # [test, "setup", "call" or "teardown", seconds]
PARTS = ROOT / ".pytest_cache" / "parts.json"  # seconds of each part of `make everything`
USUAL = ROOT / ".ci" / "durations.json"  # the same on two idle cores, the tests by folder
TOO_LONG = 30 * 60  # seconds of `make everything`, after which it says what grew
GREW = 1.3  # times its usual seconds, after which a part has grown
ROWS = 15


class Recorder:
    """A plugin of pytest that writes down how long each test and its fixtures took."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.rows.append((report.nodeid, report.when, round(report.duration, 2)))

    def pytest_sessionfinish(self) -> None:
        LAST.parent.mkdir(exist_ok=True)
        LAST.write_text(json.dumps(self.rows))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--took", nargs=2, metavar=("PART", "SECONDS"), help="write down how long a part took")
    options = parser.parse_args()
    if options.took:
        part, seconds = options.took
        PARTS.parent.mkdir(exist_ok=True)
        PARTS.write_text(json.dumps(read(PARTS, {}) | {part: int(seconds)}))
    elif options.keep:
        USUAL.write_text(json.dumps(parts(), indent=1) + "\n")
    elif options.parts:
        show_parts(parts(), read(USUAL, {}))
    else:
        show_slowest(read(LAST, []))


def read(path: Path, otherwise):
    return json.loads(path.read_text()) if path.exists() else otherwise


def parts() -> dict[str, int]:
    """Seconds of each part of `make everything`, and of each folder of tests, all workers together."""
    folders: dict[str, float] = defaultdict(float)
    for test, _, seconds in read(LAST, []):
        file = Path(test.partition("::")[0])
        folders[str(file if file.parent.name == "tests" else file.parent)] += seconds
    return read(PARTS, {}) | {name: round(seconds) for name, seconds in sorted(folders.items())}


def show_parts(now: Mapping[str, int], usual: Mapping[str, int]) -> None:
    """All parts, next to what they take on two idle cores; which of them grew, if all took too long."""
    table = Table("part", "seconds", "usually", box=None)
    for name, seconds in now.items():
        table.add_row(name, str(seconds), str(usual.get(name, "–")))
    Console().print(table)
    together = sum(read(PARTS, {}).values())
    grew = [f"{name} (+{took - usual[name]} s)" for name, took in now.items() if took > GREW * usual.get(name, took)]
    print(f"together {together / 60:.0f} minutes")
    if together > TOO_LONG:
        print(f"more than {TOO_LONG // 60} minutes; more than {GREW} times as long as usual took: {', '.join(grew)}")


def show_slowest(rows: list[tuple[str, str, float]]) -> None:
    """The slowest files, tests and fixtures."""
    files: dict[str, float] = defaultdict(float)
    for test, _, seconds in rows:
        files[test.partition("::")[0]] += seconds
    tests = {test: seconds for test, when, seconds in rows if when == "call"}
    fixtures = {f"{test}, {when}": seconds for test, when, seconds in rows if when != "call"}
    for what, found in (("files", files), ("tests", tests), ("fixtures, by the test that met them", fixtures)):
        table = Table("seconds", what, box=None, title_justify="left")
        for name in sorted(found, key=lambda name: -found[name])[:ROWS]:
            table.add_row(f"{found[name]:.1f}", name)
        Console().print(table, "")


if __name__ == "__main__":
    main()
