"""Notebooks run from top to bottom and show what is stored: ten of them, drawn by the tree, or all."""

from __future__ import annotations

import pytest

from tests.test_notebooks import DRAWN, FOLDER, NAMES, load_build

OTHERS = [pytest.param(name, marks=pytest.mark.slow("not drawn")) for name in NAMES if name not in DRAWN]


FIRST = pytest.param("first_five_minutes", marks=pytest.mark.slow("not drawn"))


@pytest.mark.parametrize("name", [*DRAWN, *OTHERS, FIRST])
def test_a_run_shows_what_is_stored(name):
    assert load_build().run(FOLDER / f"{name}.ipynb") == []
