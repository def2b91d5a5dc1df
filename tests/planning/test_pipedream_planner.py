"""PipeDream's planner: levels, by hand and in general, and a published plan; the lesson has the others."""

from __future__ import annotations

import subprocess
import sys
from math import inf, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.lessons.planning.pipedream_planner import COST_MODELS, ETHERNET, PROFILES, PUBLISHED, plan_of
from minitrain.planning.pipedream_planner import plan
from minitrain.planning.profile import Layer, read


@pytest.mark.slow("9,846 plans")
def test_chains_of_eight_layers():
    """In a process of its own: there shapes are not checked, which costs milliseconds for each plan."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.planning.all_chains"], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1641"] * 6


numbers = st.integers(1, 9)
chains = st.lists(st.builds(Layer, st.just("x"), numbers, numbers, numbers, numbers), min_size=1, max_size=5)


@given(chains, st.integers(1, 5), numbers)
def test_a_level_of_one_worker_changes_nothing(layers, workers, bandwidth):
    flat = plan(layers, [(workers, bandwidth)])
    assert plan(layers, [(workers, bandwidth), (1, 3)]) == flat
    time, stages = plan(layers, [(1, 3), (workers, bandwidth)])
    assert (time, stages) == flat


@given(chains, st.lists(st.tuples(st.integers(1, 3), numbers), min_size=1, max_size=3))
def test_levels_use_all_workers_and_all_layers(layers, levels):
    time, stages = plan(layers, levels)
    assert sum(m for *_, m in stages) == prod(workers for workers, _ in levels)
    assert [n for i, j, _ in stages for n in range(i, j + 1)] == list(range(len(layers)))
    total = sum(layer.forward + layer.backward for layer in layers) / 1000
    # Nothing is faster than all workers computing all the time.
    assert time * prod(workers for workers, _ in levels) >= total * (1 - 1e-12)


def test_two_levels_by_hand():
    # Two servers of 2; 8 s and no weights, then 4 s and 1 byte. In a server, with an infinitely fast network: 8/2 for
    # the first layer, 4/2 for the second, 12/2 for both. Between servers, with a byte per second: two replicas of
    # both layers take max(6, 2 · 1)/2 = 3, and a stage in each server takes max(4, 2).
    layers = [Layer("a", 8000, 0, 0, 0), Layer("b", 4000, 0, 0, 1)]
    assert plan(layers, [(2, inf), (2, 1.0)]) == (3.0, [(0, 1, 4)])
    # At a tenth of the speed two replicas take 20/2, and the message between two stages nothing.
    assert plan(layers, [(2, inf), (2, 0.1)]) == (4.0, [(0, 0, 2), (1, 1, 2)])


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_plans_with_the_costs_of_the_code(name):
    file, workers, expected = PUBLISHED[name]
    assert plan_of(file, workers, ETHERNET, "optimizer.py") == expected


def test_what_the_paper_s_costs_give():
    """Of the published plans all but ResNet-50's in a flat network; that one in the levels of cluster B."""
    found = {name: plan_of(file, m, ETHERNET, "paper") for name, (file, m, _) in PUBLISHED.items()}
    assert {name for name, *_ in PUBLISHED.items() if found[name] != PUBLISHED[name][2]} == {"ResNet-50"}
    assert len(found["ResNet-50"]) == 2
    # 8 V100s with NVLink in each server, 25 Gbit/s between the two.
    stages = plan(read(PROFILES / "resnet50.txt"), [(8, 150e9), (2, 25e9 / 8)])[1]
    assert [m for *_, m in stages] == [16]


@pytest.mark.parametrize("model", COST_MODELS)
def test_the_example_of_the_code(model):
    # Its README plans VGG-16 for 4 workers with 1 GB/s, and continues with 3 replicas of stage 0 and 1 of stage 1.
    assert plan_of("vgg16", 4, 1e9, model) == (3, 1)


@pytest.mark.parametrize(
    ("layers", "levels", "message"),
    [
        ([], [(1, 1)], r"there is nothing to plan: len\(layers\)=0"),
        ([Layer("a", 1, 1, 1, 1)], [(0, 1)], "workers=0 must be at least 1"),
        ([Layer("a", 1, 1, 1, 1)], [(2, 1), (2, -5)], "bandwidth=-5 above 0"),
        ([Layer("a", 5, 0, 1, 1), Layer("b", -1, 0, 1, 1)], [(2, 1)], "none less than 0"),
    ],
)
def test_bad_input(layers, levels, message):
    with pytest.raises(AssertionError, match=message):
        plan(layers, levels)
