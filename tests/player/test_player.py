"""What a recording must hold: time goes on, the last state is the result, bytes are the formula's, no run differs."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from minitrain.comm import World
from minitrain.lessons.message_scenes import BROKEN
from minitrain.lessons.scenes import SCENES
from minitrain.player.clock import ticks
from minitrain.player.memory import RECEIVING, Memory
from minitrain.player.page import page, source
from minitrain.ranks import Ranks

ROOT = Path(__file__).parents[2]
OLDER = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other Pythons tell of other lines")


@pytest.fixture(scope="module")
def ranks():
    pools: dict[int, Ranks] = {}

    def of(size: int) -> Ranks:
        pools[size] = pools.get(size) or Ranks(size, device="cpu", timeout=20)
        return pools[size]

    yield of
    for pool in pools.values():
        pool.close()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> Path:
    """A folder of recordings made now; in a process of their own, since these tests' ranks check shapes."""
    folder = tmp_path_factory.mktemp("plays")
    subprocess.run([sys.executable, "-m", "minitrain.lessons.plays", folder], cwd=ROOT, check=True, timeout=500)
    return folder


def committed(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "plays" / f"{name.removeprefix('minitrain.')}.json").read_text("utf-8"))


def cells(tensor: dict[str, Any], memory: dict[str, list]) -> list:
    """A tensor's numbers, by its place in memory."""
    shape, places = tensor["shape"], [tensor.get("start", 0)]
    strides = tensor.get("strides") or [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    for size, stride in zip(shape, strides, strict=True):
        places = [place + index * stride for place in places for index in range(size)]
    return [memory[str(tensor["storage"])][place] for place in places]


def states(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a reader sees at each event, from the changes."""
    found, state = [], {"names": {}, "shown": {}, "memory": {}}
    for event in events:
        merged = {part: {**state[part], **event.get(part, {})} for part in ("names", "shown", "memory")}
        state = {**state, **event, **merged}
        found.append(state)
    return found


def undisturbed(world: World, name: str) -> dict[str, list]:
    """Run a scene without the recorder: what its tensors hold at the end."""
    torch.manual_seed(0)
    scene = SCENES[name][0](world)
    scene.run()
    found = {}
    for label, value in scene.show.items():
        value = value() if callable(value) and not isinstance(value, nn.Module) else value
        parts = value.named_parameters() if isinstance(value, nn.Module) else [("", value)]
        for part, each in parts:
            if each.untyped_storage().nbytes():
                found[f"{label} {part}".strip()] = [round(number, 3) for number in each.detach().flatten().tolist()]
    return found


@OLDER
@pytest.mark.parametrize("name", SCENES)
def test_a_scene(ranks, fresh, name):
    file = f"{name.removeprefix('minitrain.')}.json"
    found, size = json.loads((fresh / file).read_text("utf-8")), SCENES[name][1]
    assert found == committed(name), "make plays"

    sent: dict[str, list[int]] = {}
    for events in found["ranks"]:
        assert all(a["tick"] <= b["tick"] for a, b in pairwise(events))
        for event in events:
            if event["kind"] == "starts" and event["verb"] != "receive":
                sent.setdefault(event["key"], []).append(event["tick"])
    arrivals = [event for events in found["ranks"] for event in events if event["kind"] == "arrives"]
    assert arrivals and all(event["tick"] > max(sent[event["key"]]) for event in arrivals)

    for rank, results in enumerate(ranks(size).run(undisturbed, name)):
        last = states(found["ranks"][rank])[-1]
        assert results and {each: cells(last["shown"][each], last["memory"]) for each in results} == results
        if found["formulas"]:
            assert last["sent"] == found["formulas"][rank][1]


# Who waits for whom at the end: the rank, and the other of its message, or the ranks that have not come.
WAITS = {
    "deadlock": {0: [1], 1: [0]},
    "forgotten_wait": {},
    "missing_all_reduce": {0: [1], 2: [1]},
    "one_ends_early": {0: [1]},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_scene_ends_where_it_hangs(fresh, name):
    found = json.loads((fresh / f"{name}.json").read_text("utf-8"))
    last = [states(events)[-1] for events in found["ranks"]]
    assert [rank for rank, state in enumerate(last) if "error" in state] == (list(WAITS[name]) or [0, 1])
    for rank, others in WAITS[name].items():
        hangs = [event for event in found["ranks"][rank] if event["kind"] == "starts"][-1]
        came = {
            other
            for other, events in enumerate(found["ranks"])
            for event in events
            if event["kind"] == "starts" and event["verb"] != "receive" and event["key"] == hangs["key"]
        }
        needed = hangs["members"] if "peer" not in hangs else [hangs["peer"]]
        assert [other for other in needed if other != rank and other not in came] == others
        # The line at which it hangs is the one that communicates.
        file, line, _ = last[rank]["stack"][-1]
        assert ".wait()" in dict((number, text) for number, text, _ in found["sources"][file]["lines"])[line]


def event(kind: str, verb: str = "", peer: int | None = None) -> dict[str, Any]:
    return {"kind": kind, "verb": verb, "peer": peer, "key": "k", "members": [0, 1]}


def test_nothing_arrives_before_it_was_sent():
    line, start, arrival = event("line"), event("starts", "send", 1), event("arrives", "receive", 0)
    receives = [event("starts", "receive", 0), event("waits", "receive", 0), arrival]
    assert ticks([[line, line, start], receives]) == [[0, 1, 2], [0, 0, 3]]
    assert ticks([[line, start], receives], lambda each: 10) == [[0, 10], [0, 0, 11]]
    # Of a collective, nothing before all have begun.
    together = [event("starts", "all_reduce"), event("arrives", "all_reduce")]
    assert ticks([together, [line, line, line, *together]]) == [[0, 4], [0, 1, 2, 3, 4]]
    with pytest.raises(AssertionError, match="nobody has sent"):
        ticks([[line], receives])


def test_a_view_is_a_part_of_the_same_memory():
    memory = Memory()
    with memory:
        whole = torch.arange(6.0)
        part = whole.view(2, 3)[:, 1]
    assert memory.told(whole) == {"storage": 0, "shape": [6]}
    assert memory.told(part) == {"storage": 0, "shape": [2], "start": 1, "strides": [3]}
    assert memory.cells(0, []) == [0, 1, 2, 3, 4, 5]
    assert memory.cells(0, [(4, 12)]) == [0, RECEIVING, RECEIVING, 3, 4, 5]
    assert memory.held() == 24
    del whole, part
    assert memory.held() == 0 and memory.cells(0, []) is None


def test_memory_that_is_back_holds_nothing_yet():
    memory, tensor = Memory(), torch.ones(4)
    memory.told(tensor)
    storage = tensor.untyped_storage()
    storage.resize_(0)
    assert memory.told(tensor)["freed"] and memory.cells(0, []) == []
    storage.resize_(16)
    assert memory.cells(0, []) == [None] * 4
    tensor.fill_(7)
    assert memory.cells(0, []) == [7] * 4


def test_what_explains_a_line():
    text = '''
def outer():
    """What it does."""
    # Why so.
    first = 1
    second = 2  # because
    third = 3  # [rows, columns]
'''
    explained = {number: why for number, _, why in source(text, {5})["lines"]}
    assert [explained[number] for number in (5, 6, 7)] == ["Why so.", "because", "What it does."]
    assert source(text, set())["lines"][0][0] == 1, "without functions that ran it is a cell: all of it"


def test_sizes():
    player = ROOT / "minitrain" / "player"
    assert sum((player / f"player.{kind}").stat().st_size for kind in ("js", "css")) <= 60_000
    for file in (ROOT / "docs" / "plays").glob("*.json"):
        assert len(gzip.compress(page(json.loads(file.read_text("utf-8"))).encode())) <= 60_000
