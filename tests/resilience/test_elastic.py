"""A rendezvous in all its cases, and worlds that form in place: one process joins a training, another is killed."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from minitrain.comm.messages import all_reduce, broadcast, rank_and_size
from minitrain.ranks import Ranks
from minitrain.ranks.failures import RanksError
from minitrain.resilience.elastic import Rendezvous, form
from minitrain.resilience.ordered_sum import share

STEPS, MICRO_BATCHES = 9, 6


def door(store, name, least=2, most=3, last_call=0.05, patience=10.0):
    return Rendezvous(store, name, least, most, last_call, patience)


@pytest.fixture
def together():
    with ThreadPoolExecutor(8) as threads:
        yield lambda *calls: [threads.submit(call) for call in calls]


def test_newcomers_wait_for_the_next_generation_and_come_after_the_survivors(together):
    store, names = dist.HashStore(), "bcad"
    meetings = {name: door(store, name, most=4) for name in names}
    first = [found.result() for found in together(meetings["b"].join, meetings["c"].join)]
    assert [(each.number, each.members) for each in first] == [(0, ["b", "c"])] * 2
    assert sorted(each.rank for each in first) == [0, 1]
    late = together(meetings["a"].join, meetings["d"].join)
    assert meetings["b"].came(0, 4, 10.0) == 4
    # Steps decide, then names: of the survivors, one has missed a step.
    stay = together(lambda: meetings["b"].join(6), lambda: meetings["c"].join(7))
    found = [each.result() for each in (*stay, *late)]
    assert {(each.number, *each.members) for each in found} == {(1, "c", "b", "a", "d")}
    assert [each.rank for each in found] == [1, 0, 2, 3]


def test_one_too_many_waits_until_somebody_has_left(together):
    store = dist.HashStore()
    meetings = [door(store, name, most=2) for name in "abc"]
    first = together(*(meeting.join for meeting in meetings))
    assert meetings[0].came(0, 3, 10.0) == 3
    time.sleep(0.2)
    inside = [number for number, each in enumerate(first) if each.done()]
    assert len(inside) == 2
    (outside,) = {0, 1, 2} - set(inside)
    (stays,) = together(lambda: meetings[inside[0]].join(5))
    expected = [meetings[inside[0]].name, meetings[outside].name]
    assert stays.result().members == first[outside].result().members == expected


def test_too_few_and_a_training_that_has_ended_are_clear_errors():
    store = dist.HashStore()
    with pytest.raises(TimeoutError, match=r"generation 0: 1 of at least 2 came in 0\.1 s"):
        door(store, "a", patience=0.1).join()
    alone = door(dist.HashStore(), "a", least=1, most=1)
    alone.join()
    with pytest.raises(TimeoutError, match=r"b: nobody wrote '1/1' within 0\.1 s"):
        door(alone.store, "b", least=1, most=1, patience=0.1).join()
    with pytest.raises(AssertionError, match="least=3"):
        door(store, "a", least=3, most=2)


def member(world, port, name, comes, dies):
    """A process that knows only the store: it trains with the members that it finds, and says what it has seen."""
    dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    meeting = door(store, name, last_call=1.0)
    state, seen = torch.zeros(2), []  # steps, and the sum of all of them
    meeting.read(comes)
    while state[0] < STEPS:
        try:
            if meeting.now is None or meeting.newcomers():
                raise InterruptedError
            step, (rank, ranks) = int(state[0]), rank_and_size()
            if name == "a" and step == 3:
                store.set("third step", "")
                meeting.came(0, 3, 10.0)
            if step == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            mine = share(MICRO_BATCHES, rank, ranks)
            total = all_reduce(torch.tensor([float(sum(7**each * (step + 1) for each in mine))])).wait()
            state = torch.tensor([step + 1, state[1] + total[0]])
        except (InterruptedError, RuntimeError):  # of gloo: a member is gone
            form(store, meeting.join(int(state[0])), 20)
            seen.append((rank_and_size(), meeting.now.members))
            broadcast(state, 0).wait()
    dist.destroy_process_group()
    return state.tolist(), seen


def test_a_process_joins_and_one_is_killed_and_the_world_forms_in_place(together):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("beginning", "")
    comes, dies = {"a": "beginning", "b": "beginning", "c": "third step"}, {"b": 6}
    processes = {name: Ranks(1, device="cpu") for name in comes}
    try:
        calls = [
            lambda name=name, ranks=ranks: ranks.run(member, store.port, name, comes[name], dies.get(name, -1))[0]
            for name, ranks in processes.items()
        ]
        a, b, c = together(*calls)
        right = sum(7**each * (step + 1) for step in range(STEPS) for each in range(MICRO_BATCHES))
        assert a.result()[0] == c.result()[0] == [STEPS, right]
        whole, left = ["a", "b", "c"], ["a", "c"]
        assert a.result()[1] == [((0, 2), ["a", "b"]), ((0, 3), whole), ((0, 2), left)]
        assert c.result()[1] == [((2, 3), whole), ((1, 2), left)]
        with pytest.raises(RanksError, match="SIGKILL"):
            b.result()
    finally:
        for ranks in processes.values():
            ranks.close()
