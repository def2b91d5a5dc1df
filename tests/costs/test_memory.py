"""The calculator prints the ZeRO paper's figures, refuses what makes no model, and needs no torch.

The formulas for one device are tested against real steps in tests/matrix_product/test_memory.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from minitrain.costs import zero
from minitrain.costs.calculator import calculate

# Rajbhandari et al. 2020, table 1, as printed: GB for each number of ranks, stages 1 to 3.
TABLE_1 = {
    7.5e9: {
        1: ("120", "120", "120"),
        4: ("52.5", "41.3", "30"),
        16: ("35.6", "21.6", "7.5"),
        64: ("31.4", "16.6", "1.88"),
        256: ("30.4", "15.4", "0.47"),
        1024: ("30.1", "15.1", "0.12"),
    },
    128e9: {64: ("536", "284", "32"), 256: ("518", "263", "8"), 1024: ("513", "257", "2")},
    1e12: {64: ("4187", "2218", "250"), 256: ("4046", "2054", "62.5"), 1024: ("4011", "2013", "15.6")},
}
WITHOUT_TORCH = """
import runpy, sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch":
            raise ImportError("the calculator wants torch")
sys.meta_path.insert(0, NoTorch())
runpy.run_module("minitrain.costs.memory", run_name="__main__")
"""


@pytest.mark.parametrize("parameters", TABLE_1)
def test_table_1_of_zero(parameters):
    """They round or cut the last digit."""
    for ranks, printed in TABLE_1[parameters].items():
        for stage, text in enumerate(printed, 1):
            last_digit = 10.0 ** -len(text.partition(".")[2])
            found = sum(zero.state_bytes(stage, parameters, ranks).values()) / 1e9
            assert abs(found - float(text)) < last_digit


def rows(text):
    """The cells of each line that has some, split where two spaces are."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip()]


def table(text, title):
    """The lines of the table below the line that begins with `title`."""
    lines = text[text.index(title) :].splitlines()
    rule = next(i for i, line in enumerate(lines) if line.strip().startswith("──"))
    found = []
    for line in lines[rule + 1 :]:
        if line.strip() and not line.startswith(" "):
            break
        found.append(line)
    return rows("\n".join(found))


def test_figure_1_of_zero(capsys):
    calculate(parameters=7.5e9, ranks=64)
    printed = capsys.readouterr().out
    held = table(printed, "Model states")
    assert [row[4] for row in held] == ["120.0", "31.4", "16.6", "1.9"]
    assert [row[5] for row in held] == ["111.8", "29.2", "15.5", "1.7"]
    # A tenth of each stays free: 31.4 GB are more than 0.9 · 32, and 120 fewer than 0.9 · 141.
    every = "24, 32, 40, 80, 141, 192"
    assert [row[6] for row in held] == ["141, 192", "40, 80, 141, 192", every, every]
    assert held[1][1:4] == ["15.0", "15.0", "1.4"]
    largest = [f"{0.9 * gpu / 16:.1f}" for gpu in (24, 32, 40, 80, 141, 192)]
    assert table(printed, "Largest")[0] == ["0", *largest]
    assert "Activations" not in printed


def run(*options):
    """`python -m minitrain.costs.memory` where torch cannot be imported."""
    command = [sys.executable, "-c", WITHOUT_TORCH, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_page_shows_what_it_prints():
    page = (Path(__file__).parents[2] / "docs/running.md").read_text(encoding="utf-8")
    shown = page[page.index("python -m minitrain.costs.memory --parameters 7.5e9 --ranks 64") :]
    shown = shown[shown.index("```text\n") + len("```text\n") :].split("```")[0]
    done = run("--parameters", "7.5e9", "--ranks", "64")
    assert done.returncode == 0
    lines = iter(rows(done.stdout))
    assert all(line in lines for line in rows(shown))  # in this order


def test_a_mistake_is_one_line():
    done = run("--layers", "3")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: layers=3 alone is no shape; give --hidden, --heads, --seq too\n"
