"""The pages' JavaScript next to the Python that it repeats."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

DRIVER = """
const page = {}
for (const file of %s) Object.assign(page, await import(file))
let text = ""
process.stdin.on("data", part => { text += part })
process.stdin.on("end", () => {
  process.stdout.write(JSON.stringify(JSON.parse(text).map(([name, ...inputs]) => page[name](...inputs))))
})
"""


def node() -> str:
    """The JavaScript engine that playwright brings."""
    driver = pytest.importorskip("playwright._impl._driver", reason="playwright is not installed")
    program = driver.compute_driver_executable()
    return program[0] if isinstance(program, tuple) else program


def plain(value: Any) -> Any:
    """As JavaScript has it: records are objects, and tuples of numbers are lists."""
    if hasattr(value, "_asdict"):
        return {name: plain(each) for name, each in value._asdict().items()}
    return [plain(each) for each in value] if isinstance(value, tuple | list) else value


def same(theirs: Any, ours: Any) -> bool:
    """Whole numbers to the last digit, others but for rounding."""
    if isinstance(ours, dict):
        return theirs.keys() == ours.keys() and all(same(theirs[name], ours[name]) for name in ours)
    if isinstance(ours, list):
        return len(theirs) == len(ours) and all(map(same, theirs, ours))
    if ours is None or isinstance(ours, str) or (isinstance(ours, int) and ours < 2**53):
        return theirs == ours
    return theirs == pytest.approx(ours, rel=1e-12, abs=1e-15)


def answers(files: list[Path], calls: list[tuple], folder: Path) -> list[Any]:
    """What functions of these files say: of each call its name and arguments."""
    script = folder / "driver.mjs"
    script.write_text(DRIVER % json.dumps([file.as_uri() for file in files]))
    (folder / "package.json").write_text('{"type": "module"}')
    asked = json.dumps([[name, *plain(arguments)] for name, arguments, *_ in calls])
    ended = subprocess.run([node(), script], input=asked, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert len(found) == len(calls)
    return found
