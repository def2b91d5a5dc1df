"""The axes: who is in which group; and what the table says of every parameter, against what ranks really hold."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

from minitrain.comm.control import gather_objects
from minitrain.composition.layout import make_axes, table
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.composition.step import Instruments
from minitrain.lessons.composition import layout as lesson_layout
from minitrain.train import build, make_part

MODEL = Model(layers=4, hidden=8, heads=4, positions=8, vocabulary=257)


def groups(world, layout):
    axes = make_axes(layout)
    members = {name: dist.get_process_group_ranks(getattr(axes, name)) for name in ("pp", "dp", "cp", "tp", "alone")}
    members |= {name: dist.get_process_group_ranks(getattr(axes, name)) for name in ("experts", "replicas", "dp_cp")}
    axes.close()
    return members, axes.place


GROUPS = [Layout(dp=2, tp=2), Layout(pp=2, tp=2), Layout(dp=4, ep=2), Layout(pp=2, dp=2)]
WITH_CP = [Layout(cp=4), Layout(dp=2, cp=2), Layout(cp=2, tp=2), Layout(pp=2, cp=2)]


@pytest.mark.parametrize("layout", [*GROUPS, *WITH_CP], ids=str)
def test_groups(ranks, layout):
    inner, wide = layout.cp * layout.tp, layout.dp * layout.cp
    for rank, (members, place) in enumerate(ranks(4).run(groups, layout)):
        tp, cp = rank % layout.tp, rank // layout.tp % layout.cp
        dp, pp = rank // inner % layout.dp, rank // (inner * layout.dp)
        experts = {"replicas": dp // layout.ep, "experts": dp % layout.ep}
        assert place == {"pp": pp, "dp": dp, "cp": cp, "tp": tp, "dp·cp": dp * layout.cp + cp, **experts}
        # Tensor-parallel ranks are neighbours, then come context-parallel ones, and pipelines are outermost.
        first = rank - tp - (dp * layout.cp + cp) * layout.tp
        along_dp = [rank + (each - dp) * inner for each in range(layout.dp)]
        assert members == {
            "tp": [rank - tp + each for each in range(layout.tp)],
            "cp": [rank + (each - cp) * layout.tp for each in range(layout.cp)],
            "dp": along_dp,
            "dp_cp": [first + tp + each * layout.tp for each in range(wide)],
            "pp": [rank + (each - pp) * layout.dp * inner for each in range(layout.pp)],
            "experts": along_dp[dp // layout.ep * layout.ep :][: layout.ep],
            "replicas": along_dp[dp % layout.ep :: layout.ep],
            "alone": [rank],
        }


LAYOUTS = [
    Layout(dp=2, tp=2, sequence_parallel=True),
    Layout(dp=2, tp=2, sequence_parallel=True, zero=1),
    Layout(dp=2, pp=2, zero=1),
    Layout(pp=2, tp=2),
    Layout(dp=2, cp=2),
    Layout(dp=2, cp=2, zero=1),
    Layout(cp=2, tp=2, zero=1),
]
EXPERTS = [Layout(dp=4, ep=2), Layout(dp=4, ep=2, zero=1), Layout(dp=2, ep=2, tp=2, zero=1)]


def held(world, model, layouts):
    """For each layout: parameters whose counted holders are not the table's; and elements that count as first."""
    found = []
    for layout in layouts:
        training = build(Settings(model, layout, Steps(batch=8)), world.device)
        wrong, elements = lesson_layout.holders(training)
        assert sum(math.prod(shape) for shape in training.part.shapes.values()) == sum(gather_objects(elements))
        training.close()
        found.append(wrong)
    return found


@pytest.mark.parametrize("model, layouts", ((MODEL, LAYOUTS), (Model(**vars(MODEL) | {"experts": 6}), EXPERTS)))
def test_the_table_says_who_holds_what(ranks, model, layouts):
    assert ranks(4).run(held, model, layouts) == [[[] for _ in layouts]] * 4


def rows(world, layout):
    training = build(Settings(MODEL, layout, Steps(batch=8)), world.device)
    spreads = [each for theirs in gather_objects(list(training.gradients.spread.values())) for each in theirs]
    training.close()
    summed = {spread.name: spread.summed for spread in spreads}
    return summed, table(spreads)


def test_what_is_summed_where(ranks):
    """The three that are forgotten: norms over sequence shards, the tied table over its stages, all over dp."""
    summed, shown = ranks(4).run(rows, Layout(pp=2, tp=2, sequence_parallel=True))[0]
    assert summed["embedding.tokens.weight"] == ("pp",)
    for name in ("blocks.1.mlp_norm.weight", "norm.bias", "embedding.positions.weight", "blocks.2.mlp.down.bias"):
        assert summed[name] == ("tp",)
    for name in ("blocks.0.attention.query.weight", "blocks.3.mlp.up.bias", "blocks.0.mlp.down.weight"):
        assert summed[name] == ()
    assert "blocks.0-3.mlp_norm.weight" in shown and len(shown.splitlines()) < 24
    summed, _ = ranks(4).run(rows, Layout(dp=2, pp=2))[0]
    assert summed["embedding.tokens.weight"] == ("pp", "dp")  # in this order: each stage's copy is complete first
    assert {axes for name, axes in summed.items() if "blocks" in name} == {("dp",)}
    assert set(ranks(4).run(rows, Layout(tp=4))[0][0].values()) == {()}
    summed, shown = ranks(4).run(rows, Layout(pp=2, cp=2))[0]
    assert summed["embedding.tokens.weight"] == ("pp", "dp·cp") and "dp·cp 2" in shown
    assert {axes for name, axes in summed.items() if "blocks" in name} == {("dp·cp",)}


def wrong_size(world):
    with pytest.raises(ValueError, match="does not match the 2 ranks"):
        make_axes(Layout(dp=3))


def test_another_number_of_ranks(ranks):
    ranks(2).run(wrong_size)


def alike(world, layout):
    """Two ranks have the same initial values where the table says so."""
    axes = make_axes(layout)
    part = make_part(Settings(MODEL, layout), axes, torch.device("cpu"), Instruments())
    axes.close()
    return {name: parameter.sum().item() for name, parameter in part.parameters.items()}, axes.place


def test_ties_begin_equal(ranks):
    found = ranks(4).run(alike, Layout(pp=2, tp=2))
    for place in (0, 1):
        first, last = (values for values, where in found if where["tp"] == place)
        assert first["embedding.tokens.weight"] == last["embedding.tokens.weight"]
