"""Which parallelism when: the chart in the browser comes to the same layouts as the chart in Python."""

from __future__ import annotations

import random

import pytest

from minitrain.costs import layout, memory, roofline
from minitrain.costs.fabric import Fabric
from minitrain.costs.layout import Cut, Sizes
from minitrain.costs.roofline import MACHINES, SEVEN_BILLION
from tests.site.conftest import ROOT
from tests.site.javascript import answers, plain, same

import which  # isort: skip  (of docs/hooks, whose path the conftest adds)

pytestmark = pytest.mark.usefixtures("without_shapes")  # a case calls small functions very often
FILE = ROOT / "docs" / "javascripts" / "which.js"


def case(draw: random.Random) -> tuple:
    """A model and GPUs as the sliders give them, and somewhat beyond."""
    positions = 2 ** draw.randint(10, 21)
    shape = which.shape_of(10 ** draw.uniform(8, 12), positions)
    shape = draw.choice([shape, shape, SEVEN_BILLION._replace(positions=positions)])
    machine = draw.choice(list(MACHINES.values()))._replace(size=draw.choice([16e9, 40e9, 80e9, 192e9]))
    machine = machine._replace(network=draw.choice([3.125e9, 25e9, 100e9]))
    fabric = Fabric(draw.choice([1, 4, 8]), reached_out=draw.uniform(0.05, 1))
    return shape, 2 ** draw.randint(0, 14), 2 ** draw.randint(16, 26), machine, fabric


def test_both_languages_agree(tmp_path):
    draw = random.Random(64)
    calls = [("decide", case(draw)) for _ in range(300)]
    calls += [("shapeOf", (10 ** draw.uniform(8, 12), 2 ** draw.randint(10, 21))) for _ in range(1000)]
    calls += [("tokensToHideGradients", (2 ** draw.randint(0, 14), draw.uniform(1e14, 1e15), 1e11)) for _ in range(99)]
    ours = {
        "decide": which.decide,
        "shapeOf": which.shape_of,
        "tokensToHideGradients": roofline.tokens_to_hide_gathers,  # the same formula as for gradients
    }
    ways = set()
    for (name, arguments), theirs in zip(calls, answers([FILE], calls, tmp_path), strict=True):
        found = plain(ours[name](*arguments))
        assert same(theirs, found), f"{name}{arguments}: {theirs} in JavaScript, {found} in Python"
        if name == "decide" and found["fits"]:
            ways.add((found["zero"], found["tp"] > 1, found["pp"] > 1, found["cp"] > 1, found["recompute"]))
    # Every question is answered with yes somewhere, so that all of them are compared.
    assert {way[0] for way in ways} == {0, 1, 3} and all({True} <= {way[axis] for way in ways} for axis in (1, 2, 3))


def test_what_is_chosen_fits_and_what_came_before_does_not():
    """By the formulas of memory: a layout of the chart fits, and without its last resort it would not."""
    draw, seen = random.Random(7), 0
    for _ in range(100):
        shape, gpus, tokens, machine, fabric = case(draw)
        found = which.decide(shape, gpus, tokens, machine, fabric)
        if not found["fits"]:
            continue
        assert found["dp"] * found["pp"] * found["cp"] * found["tp"] == gpus
        assert found["held"] <= (1 - memory.ROOM) * machine.size
        assert found["dp"] * found["microbatches"] <= found["batch"]
        if found["tp"] > 1 and found["batch"] >= gpus:
            # There would have been a sequence for each GPU: ZeRO 3 alone does not fit, or its gathers do not hide.
            cut = Cut(gpus, zero=3, recompute="full")
            alone = sum(layout.held(shape, cut, 0, Sizes()).values())
            assert alone > (1 - memory.ROOM) * machine.size or found["micro"] < found["gathers"]
            seen += 1
    assert seen >= 3


def test_gpt_3_and_seven_billion():
    """What the page says of two usual cases."""
    h100, course = MACHINES["H100"], SEVEN_BILLION._replace(learned=False)
    seven = which.decide(course, 64, 2**22, h100, Fabric())
    assert (seven["dp"], seven["zero"], seven["recompute"]) == (64, 1, "none")
    # 16 bytes for each parameter on 72 GB; with ZeRO 1, 12 of them over 64.
    assert seven["most0"] == 72e9 / 16 and seven["most1"] == 72e9 / (4 + 12 / 64)
    large = which.decide(which.shape_of(175e9, 2048), 64, 2**22, h100, Fabric())
    assert (large["dp"], large["zero"], large["recompute"], large["pp"]) == (64, 3, "full", 1)
    slow = which.decide(which.shape_of(175e9, 2048), 64, 2**22, h100, Fabric(reached_out=0.1))
    assert slow["tp"] == 8 and slow["pp"] > 1  # gathers would take eight times as long
