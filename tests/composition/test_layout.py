"""The axes: who is in which group; and what the table says of every parameter, against what ranks really hold."""

from __future__ import annotations

from minitrain.comm.control import gather_objects
from minitrain.composition.layout import table
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.train import build

MODEL = Model(layers=4, hidden=8, heads=4, positions=8, vocabulary=257)


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
