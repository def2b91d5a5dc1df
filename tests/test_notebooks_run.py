"""Notebooks run from top to bottom and show what is stored: ten of them, drawn by the tree, or all."""

from __future__ import annotations

import pytest

from tests.test_notebooks import DRAWN, FOLDER, NAMES, load_build

SLOW = pytest.mark.slow("not among the ten")
OTHERS = [pytest.param(name, marks=SLOW) for name in (*NAMES, "first_five_minutes") if name not in DRAWN]


@pytest.mark.parametrize("name", [*DRAWN, *OTHERS])
def test_a_run_shows_what_is_stored(name):
    assert load_build().run(FOLDER / f"{name}.ipynb") == []
