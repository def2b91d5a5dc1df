"""The game: what it says of published layouts against what their authors measured."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from minitrain.costs import composition
from minitrain.planning.full import game, plan_time, published
from minitrain.planning.full.game import ROUNDS, play

pytestmark = pytest.mark.usefixtures("without_shapes")  # a simulation calls small functions very often


@pytest.mark.parametrize(("name", "billions"), [("7.5b", 7.5), ("39b", 39.1), ("145b", 145.6), ("1t", 1008.0)])
def test_models_are_those_of_the_paper_s_table(name, billions):
    at = ROUNDS[name]
    shape = plan_time.shape_of(at.model)
    # Narayanan et al. 2021, equation 2: P = 12 l h² (1 + 13/(12 h) + (V + s)/(12 l h)), printed with one decimal.
    assert round(composition.model_parameters(shape) / 1e9, 1) == billions
    assert at.layout.ranks == {"7.5b": 128, "39b": 512, "145b": 1536, "1t": 3072}[name]


@pytest.mark.parametrize("name", ROUNDS)
def test_published_layouts_come_close_to_what_was_measured(name):
    score = play(name, ROUNDS[name].layout)
    # Llama 3's is played with full recomputation, which it really did without: 8 products for 6.
    again = 6 / 8 if name == "405b" else 1
    assert score.bar.step == pytest.approx(ROUNDS[name].seconds / again, rel=0.1)
    assert abs(published.off(replace(ROUNDS["405b"], layout=replace(ROUNDS["405b"].layout, recompute="none")))) < 0.03


def test_a_score_is_tokens_over_seconds():
    score = play("39b", ROUNDS["39b"].layout)
    assert score.tokens == pytest.approx(1536 * 2048 / score.bar.step)
    # Full recomputation: eight products are made where the model has six, apart from the head.
    done = game.flops(ROUNDS["39b"], ROUNDS["39b"].layout, score.bar.step)
    assert done / (score.mfu * 312e12) == pytest.approx(8 / 6, rel=0.01)
    # The authors of Llama 3 count what the model has, whatever is computed again.
    at = ROUNDS["405b"]
    again = play("405b", at.layout)
    assert game.flops(at, at.layout, again.bar.step) == pytest.approx(again.mfu * at.machine.flops)


def run(*arguments):
    command = [sys.executable, "-m", "minitrain.planning.full.game", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def test_the_page_shows_what_the_command_prints():
    page = (Path(__file__).parents[2] / "docs" / "game.md").read_text("utf-8")
    arguments = re.search(r"python -m minitrain\.planning\.full\.game (.*)", page)[1]
    printed = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1]
    assert run(*shlex.split(arguments)).stdout.split() == printed.split()
