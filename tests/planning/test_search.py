"""The search: the same layouts as an exhaustive one, only such as the trainer takes, and few simulations."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from minitrain.composition.settings import Layout, Model, Steps, check
from minitrain.lessons.planning.search import SPACES, exhaustive, space
from minitrain.planning import plan
from minitrain.planning.full import proposals, published
from minitrain.planning.full.time_model import fits
from minitrain.planning.search import layouts, search

pytestmark = pytest.mark.usefixtures("without_shapes")  # an exhaustive search calls small functions a million times
GPT3, BATCH = Model("175b"), Steps(batch=1536, dtype="bfloat16")


@pytest.mark.parametrize("sizes", SPACES.values(), ids=list(SPACES))
@pytest.mark.parametrize("keep", [1, 10, 10_000])
def test_the_search_finds_what_an_exhaustive_one_finds(sizes, keep):
    every, least, fits, seconds = space(*sizes)
    simulated = []

    def simulate(layout):
        simulated.append(layout)
        return seconds(layout)

    fit = [layout for layout in every if fits(layout)]
    assert 0 < len(fit) < len(every), "memory prunes some, not all"
    found = search(every, least, fits, simulate, keep=keep)
    assert found == exhaustive(every, least, fits, seconds, keep)
    assert len(found) == min(keep, len(fit))
    assert set(simulated) <= set(fit)
    if keep <= 10:
        assert len(simulated) < len(every) / 4


@pytest.mark.parametrize("sizes", SPACES.values(), ids=list(SPACES))
def test_of_layouts_that_are_alike_only_the_fastest_is_found(sizes):
    arguments = space(*sizes)
    found = search(*arguments, proposals.axes, keep=5)
    best: dict[tuple, float] = {}
    for seconds, layout in exhaustive(*arguments, 10_000):
        best.setdefault(proposals.axes(layout), seconds)
    assert [seconds for seconds, _ in found] == sorted(best.values())[:5]
    assert len({proposals.axes(layout) for _, layout in found}) == len(found)


def test_the_faster_of_two_that_are_alike_is_kept_also_where_its_bound_is_higher():
    # Bounds 1, 2, 3 and seconds 9, 4, 5: the first in the order of bounds is the slowest.
    a, b, c = (Layout(dp=dp) for dp in (1, 2, 3))
    bounds, seconds = {a: 1.0, b: 2.0, c: 3.0}, {a: 9.0, b: 4.0, c: 5.0}
    found = search([a, b, c], bounds.__getitem__, lambda layout: True, seconds.__getitem__, lambda layout: "alike")
    assert found == [(4.0, b)]


def test_only_a_bound_above_the_slowest_that_is_kept_ends_the_search():
    # The third bound, 6, is above the fastest of the two that are kept, 5, and below the other, 9.
    a, b, c = (Layout(dp=dp) for dp in (1, 2, 3))
    bounds, seconds = {a: 1.0, b: 2.0, c: 6.0}, {a: 5.0, b: 9.0, c: 7.0}
    found = search([a, b, c], bounds.__getitem__, lambda layout: True, seconds.__getitem__, keep=2)
    assert found == [(5.0, a), (7.0, c)]


@pytest.mark.parametrize(
    ("model", "gpus", "batch"),
    [
        (Model("gpt2", layers=10), 8, 16),
        (Model("tiny", dropout=0.1), 6, 24),
        (Model("gpt2", positions=32768), 12, 24),
        (Model("gpt2", positions=32768, experts=4), 8, 16),
    ],
)
def test_all_layouts_are_accepted_by_the_trainer(model, gpus, batch):
    steps = Steps(batch=batch, dtype="bfloat16")
    found = list(layouts(model, steps, gpus))
    assert len(set(found)) == len(found) > 10
    for layout in found:
        check(model, layout, steps, gpus)  # raises where it does not fit
        assert layout.tp <= 8 and layout.zero < 2 or layout.pp == 1
        assert layout.cp == 1 or model.sizes.positions // layout.cp >= 8192 and not model.experts
        assert layout.sequence_parallel == (layout.tp > 1)
    kinds = Counter(layout.recompute for layout in found)
    longest = max(layout.cp for layout in found)
    assert longest == (4 if model.sizes.positions == 32768 and not model.experts else 1)  # a router would choose others
    assert ("selective" in kinds) == (model.dropout > 0)  # a fused kernel recomputes by itself


LLAMA_3 = next(run for run in published.read() if run.number == 417)
LLAMA, LONG_STEPS = replace(LLAMA_3.model, positions=131072), replace(LLAMA_3.steps, batch=128)


def test_llama_3_s_layout_for_long_sequences_is_among_those_that_fit():
    # Grattafiori et al. 2024, table 4, third row: tp 8, cp 16, pp 16, dp 8 on 16,384 GPUs, with 131,072 positions.
    found = [
        layout
        for layout in layouts(LLAMA, LONG_STEPS, 16384)
        if (layout.tp, layout.cp, layout.pp, layout.dp) == (8, 16, 16, 8)
    ]
    assert {layout.cp_mode for layout in found} == {"zigzag", "ulysses"}
    assert any(fits(LLAMA, layout, LONG_STEPS, LLAMA_3.machine) for layout in found)
    # Without cp, one sequence of a micro-batch keeps 16 times as much.
    one = Layout(8, 16, 8, sequence_parallel=True, zero=1, microbatches=16, recompute="full")
    short, long = (plan.predict(LLAMA, replace(one, cp=cp), LONG_STEPS).held["activations"] for cp in (16, 1))
    assert 16 * short == long
    assert not fits(LLAMA, one, LONG_STEPS, LLAMA_3.machine)


def test_uneven_splits_are_proposed_where_they_are_faster():
    # GPT-2's head costs V/(12h + 2s) layers: 50257 / (9216 + 2048) = 4.5. Of 12 layers on 4 stages, the last stage
    # works for 3 + 4.5 of them; with 4 + 4 + 3 + 1 the busiest works for 5.5.
    model, steps, layout = Model("gpt2"), Steps(batch=512), Layout(pp=4, microbatches=512)
    counts, part = proposals.uneven(model, layout, steps)
    assert counts == [4, 4, 3, 1]
    assert part == pytest.approx(5.46 / 7.46, abs=0.02)
    # One layer fewer on the last stage is enough where the head costs V/(12h + 2s) = 50257 / (24576 + 2048) = 1.9.
    wide = replace(model, hidden=2048, heads=16)
    assert proposals.uneven(wide, Layout(pp=2, microbatches=512), steps)[0] == [7, 5]
    # For GPT-3 the head costs a third of a layer, so 12 stages of 8 layers are as good as it gets.
    assert proposals.uneven(GPT3, Layout(pp=12, tp=8, microbatches=96), Steps(batch=96)) is None
    assert proposals.uneven(model, Layout(dp=4), steps) is None
