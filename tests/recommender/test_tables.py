"""Tables keep rows by key: made once, updated alone, and evicted by age."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.recommender.hash_table import Index
from minitrain.recommender.hashing import owner, start
from minitrain.recommender.row_rules import SGD, Adagrad
from minitrain.recommender.tables import Table, by_owner

KEYS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40)


@settings(max_examples=60)
@given(st.lists(st.lists(KEYS, unique=True, max_size=25), max_size=6))
def test_the_index_numbers_as_a_dict_does(batches):
    index, known = Index(), {}
    for batch in batches:
        missing = [key for key in batch if key not in known]
        known.update(zip(missing, range(len(known), len(known) + len(missing)), strict=True))
        numbers, new = index.add(torch.tensor(batch, dtype=torch.int64))
        assert numbers.tolist() == [known[key] for key in batch]
        assert [batch[place] for place in new] == missing


def test_ids_that_all_have_one_home_are_found(monkeypatch):
    monkeypatch.setattr(Index, "_home", lambda self, ids: torch.full_like(ids, len(self._slots) - 1))
    index = Index()
    for ids in (torch.arange(5), torch.arange(3, 30)):
        index.add(ids)
    assert index.find(torch.arange(31)).tolist() == [*range(30), -1]


def test_searches_are_as_short_as_knuth_says():
    """½(1 + 1/(1 − α)) slots for an id at a load α (Knuth 1998, vol. 3, §6.4, theorem K, for many slots)."""
    index = Index()
    mine = torch.arange(200_000)
    mine = mine[owner(mine, 4) == 1][: 1 << 15]  # what one of four servers sees
    index.add(mine)
    slots = len(index._slots)
    displaced = (index._slots >= 0).nonzero().flatten()
    home = index._home(index._ids[index._slots[displaced]])
    steps = 1 + ((displaced - home) % slots).double().mean()
    assert steps == pytest.approx((1 + 1 / (1 - index.count / slots)) / 2, rel=0.03)


def test_rows_are_made_once_and_only_the_updated_ones_change():
    table = Table(3, SGD(0.5), seed=4, scale=1.0)
    ids = torch.tensor([9, -3, 2**62])
    rows = table.lookup(ids)
    assert torch.equal(rows, start(ids, 4, 3, 1.0)) and len(table) == 3
    table.update(ids[1:], torch.ones(2, 3))
    assert torch.equal(table.lookup(ids), rows - torch.tensor([[0.0], [0.5], [0.5]]))
    rows.zero_()
    assert not torch.equal(table.lookup(ids), rows), "a lookup gives a copy"
    table.lookup(torch.arange(1000))
    assert torch.equal(table.lookup(ids[:1]), start(ids[:1], 4, 3, 1.0)) and len(table) == 1002 + (9 not in range(1000))


@given(st.lists(KEYS, max_size=30), st.integers(1, 4))
def test_by_owner_gives_each_server_its_ids_once(keys, servers):
    ids = torch.tensor(keys, dtype=torch.int64)
    found = by_owner(ids, servers)
    assert torch.equal(found.ids[found.inverse], ids)
    assert sorted(found.ids.tolist()) == sorted(set(keys))
    for server, part in enumerate(found.ids.split(found.counts)):
        assert (owner(part, servers) == server).all()


def test_evicted_rows_begin_again_and_the_others_keep_their_states():
    table = Table(2, Adagrad(0.1), seed=3)
    for ids in ([1, 2, 3], [2, 4], [4]):
        table.update(torch.tensor(ids), torch.ones(len(ids), 2))
    rows, states = table.lookup(torch.tensor([2, 4])), table.states()["sum"][[1, 3]]
    assert table.evict(3).tolist() == [] and len(table) == 4
    assert table.evict(2).tolist() == [1, 3]
    assert torch.equal(table.lookup(torch.tensor([2, 4])), rows) and torch.equal(table.states()["sum"], states)
    back = torch.tensor([1, 3])
    assert torch.equal(table.lookup(back), start(back, 3, 2, 0.01))
    with pytest.raises(ValueError, match="age=0 must be at least 1"):
        table.evict(0)


def test_shards_are_loaded_on_another_number_of_servers(tmp_path):
    whole, ids = Table(2, Adagrad(0.1), seed=3), torch.arange(50)
    whole.update(ids, torch.ones(50, 2))
    for server in range(2):
        shard, mine = Table(2, Adagrad(0.1), seed=3), ids[owner(ids, 2) == server]
        shard.update(mine, torch.ones(len(mine), 2))
        shard.save(tmp_path, server, 2)
    for server in range(3):
        (found, rows), states = (loaded := Table.load(tmp_path, server, 3)).contents(), loaded.states()["sum"]
        assert found.tolist() == ids[owner(ids, 3) == server].tolist()
        assert rows.equal(whole.lookup(found)) and states.equal(whole.states()["sum"][found])


def test_a_row_that_was_only_looked_up_is_as_old_as_its_lookup():
    table = Table(2, Adagrad(0.1))
    for _ in range(3):
        table.update(torch.tensor([1]), torch.ones(1, 2))
    table.lookup(torch.tensor([7]))
    assert table.evict(1).tolist() == []
    table.update(torch.tensor([1]), torch.ones(1, 2))
    assert table.evict(1).tolist() == [7]
