"""Hybrid tables: only a lookup with gradients is pushed, and bad input is refused on every rank."""

from __future__ import annotations

import pytest
import torch

from minitrain.comm import Ledger
from minitrain.recommender.hybrid import HybridTables
from minitrain.recommender.row_rules import SGD
from minitrain.recommender.tables import Table

DIMENSIONS = {"user": 3, "item": 2}
KEYS = torch.tensor([0, 1, -1, 7, 2**63 - 1, -(2**63), 123456789012345, 5])


def shards(rule):
    return {name: Table(dimension, rule, seed=dimension, scale=1.0) for name, dimension in DIMENSIONS.items()}


def looks_without_learning(world):
    tables = HybridTables(shards(SGD(lr=1.0)))
    ids = {name: KEYS for name in DIMENSIONS}
    with pytest.raises(RuntimeError, match=r"push\(\) needs a lookup\(\) before it"):
        tables.push()
    with torch.no_grad():
        seen = tables.lookup(ids)
    with pytest.raises(RuntimeError, match="needs a lookup"):
        tables.push()
    rows = tables.lookup(ids)
    rows["user"].sum().backward()  # the loss does not use items
    tables.push()
    with torch.no_grad():
        after = tables.lookup(ids)
    assert torch.equal(after["item"], seen["item"]) and torch.equal(after["user"], seen["user"] - 1)


def test_only_a_lookup_with_gradients_is_pushed(ranks):
    ranks(2).run(looks_without_learning)


def bad(world):
    tables = HybridTables(shards(SGD()))
    good = {name: KEYS[:2] for name in DIMENSIONS}
    wrong = {"user": KEYS[:2].float() if world.rank == 1 else KEYS[:2], "item": KEYS[:2]}
    with Ledger() as ledger:
        with pytest.raises(ValueError, match=r"rank 1: ids\['user'\]: ids are torch.float32"):
            tables.lookup(wrong)
        with pytest.raises(ValueError, match=r"rank 0: ids=\['user'\] must name each of the tables \['item', 'user'\]"):
            tables.lookup({"user": KEYS} if world.rank == 0 else good)
    assert not ledger.entries
    with pytest.raises(ValueError, match=r"rank 0: lookup\(\) came twice"):
        tables.lookup(good)
        tables.lookup(good)
    tables.push()
    assert tables.lookup(good)["user"].shape == (2, 3), "still good for use"


def test_bad_input_is_refused_on_every_rank_before_anything_is_sent(ranks):
    ranks(2).run(bad)
