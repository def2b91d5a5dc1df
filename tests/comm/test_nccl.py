"""NCCL's rules: for each, a program that breaks it, and one that keeps it."""

from __future__ import annotations

from functools import partial

import pytest

from minitrain.watch.nccl import RULES, Step
from minitrain.watch.replay import replay

GROUPS = {"pair": (0, 1), "second": (0, 1), "right": (1, 2), "both": (0, 2), "everyone": (0, 1, 2)}


def step(verb, group="pair", peer=None, line="here", **more):
    return Step(verb, line, group, peer, **{"elements": 4, "dtype": "float32", **more})


send, receive = partial(step, "send"), partial(step, "receive")
reduce, gather = partial(step, "all_reduce"), partial(step, "all_gather")
make, end, host = partial(step, "make"), partial(step, "end"), partial(step, "host")


def wait(*of):
    return Step("wait", of=of)


def both(peer, batch=None):
    return [send(peer=peer, batch=batch), receive(peer=peer, batch=batch)]


BREAKS = {
    "a tensor of the CPU": ("memory", [[reduce(on_cpu=True)], [reduce()]]),
    "a dtype that NCCL lacks": ("dtype", [[reduce(dtype="int16")], [reduce(dtype="int16")]]),
    "from any rank": ("source", [[send(peer=1)], [receive()]]),
    "made by its members alone": ("make", [[make()], [make()], []]),
    "made in another order": ("make", [[make("pair"), make("right")], [make("right"), make("pair")], []]),
    "ended in another order": ("end", [[end("pair"), end("second")], [end("second"), end("pair")]]),
    "other roots": ("match", [[step("broadcast", same=(4, 0))], [step("broadcast", same=(4, 1))]]),
    "a message of another size": ("match", [[send(peer=1)], [receive(peer=0, elements=5)]]),
    "both send first": ("hang", [both(1), both(0)]),
    "a message behind a collective": ("hang", [[reduce(), send(peer=1)], [receive(peer=0), reduce()]]),
    "two groups in turn, waiting": (
        "hang",
        [[reduce("pair"), wait(0), reduce("second")], [reduce("second"), wait(0), reduce("pair")]],
    ),
    "a read between": ("hang", [[send(peer=1), wait(0), host(), reduce()], [reduce(), receive(peer=0)]]),
    "the end before the last message": ("hang", [[send(peer=1), wait(0), host(), end()], [end(), receive(peer=0)]]),
    "two groups in another order": (
        "one at a time",
        [[reduce("pair"), reduce("second")], [reduce("second"), reduce("pair")]],
    ),
}

KEEPS = {
    "both at once": [both(1, batch=1), both(0, batch=1)],
    "batches in another order": [both(1, batch=1), both(0, batch=7)[::-1]],
    "a batch meets messages": [both(1, batch=1), [receive(peer=0), send(peer=0)]],
    "one order": [[reduce("pair"), wait(0), reduce("second"), wait(2), host()]] * 2,
    "groups that overlap": [
        [reduce("pair"), reduce("both")],
        [reduce("pair"), reduce("right")],
        [reduce("right"), reduce("both")],
    ],
    "two senders in another order": [
        [send("everyone", 2)],
        [send("everyone", 2, elements=5)],
        [receive("everyone", 1, elements=5), receive("everyone", 0)],
    ],
    "ended with others between": [[end("both"), end("pair")], [end("right"), end("pair")], [end("right"), end("both")]],
}


@pytest.mark.parametrize("case", BREAKS)
def test_a_program_that_breaks_a_rule(case):
    rule, programs = BREAKS[case]
    (broken,) = replay(programs, GROUPS)
    assert broken.rule == rule
    assert "here" in broken.text or rule == "make"


@pytest.mark.parametrize("case", KEEPS)
def test_a_program_that_keeps_them(case):
    assert replay(KEEPS[case], GROUPS) == []


def test_every_rule_is_broken_by_a_case():
    assert {rule for rule, _ in BREAKS.values()} == set(RULES)


def test_a_circle_is_named_with_ranks_and_lines():
    programs = [
        [send("everyone", 2, "line a"), receive("everyone", 2)],
        [],
        [send("everyone", 0, "line b"), receive("everyone", 0)],
    ]
    (broken,) = replay(programs, GROUPS)
    assert "rank 0 in send(to=2) of everyone (line a) for rank 2" in broken.text
    assert "rank 2 in send(to=0) of everyone (line b) for rank 0" in broken.text
    assert broken.ranks == (0, 2)
    (broken,) = replay([[reduce()], []], GROUPS)
    assert "for rank 1, whose program has ended" in broken.text
