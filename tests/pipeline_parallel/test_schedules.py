"""Schedules against torch's, and the checks against a search for cycles."""

from __future__ import annotations

from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

import pytest
import torch.distributed.pipelining.schedules as torch_schedules
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.pipeline_parallel.full import versions
from minitrain.pipeline_parallel.schedules import (
    SCHEDULES,
    WITHOUT_FLUSH,
    Action,
    Schedule,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    two_buffered,
    validate,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from tests.pipeline_parallel.torch_tables import from_torch

P, M = st.integers(1, 6), st.integers(1, 14)


patient = settings(max_examples=60)


@st.composite
def sizes(draw) -> tuple[str, int, int, int]:
    """Name, ranks, micro-batches and chunks of any schedule."""
    name, ranks, microbatches = draw(st.sampled_from(sorted(SCHEDULES))), draw(P), draw(M)
    if name == "interleaved":
        return name, ranks, ranks * draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return name, ranks, microbatches, 2 if name == "zb-v" else 1


def make(size: tuple[str, int, int, int]) -> Schedule:
    name, *numbers = size
    return SCHEDULES[name](*numbers)


def graph(schedule: Schedule) -> dict[Action, set[Action]]:
    """Each action, and what comes before it: what it needs, and the one before it on its rank."""
    before = {action: set(schedule.needs(action)) for row in schedule.actions for action in row}
    for row in schedule.actions:
        for first, second in zip(row, row[1:], strict=False):
            before[second].add(first)
    return before


def torchs(name: str, ranks: int, microbatches: int, chunks: int = 1) -> list[list[str]]:
    return ours(from_torch(name, ranks, microbatches, chunks))


def ours(schedule: Schedule) -> list[list[str]]:
    return [[str(action) for action in row] for row in schedule.actions]


@patient
@given(sizes())
def test_every_schedule_is_valid_also_in_torchs_eyes_and_takes_backwards_in_rising_order(size):
    schedule = make(size)
    validate(schedule)
    for row in schedule.actions:
        for stage in range(schedule.stages):
            for kinds in ("F", "BI", "W"):
                numbers = [action.microbatch for action in row if action.stage == stage and action.kind in kinds]
                assert numbers == sorted(numbers)
    actions = {
        rank: [torch_schedules._Action.from_str(text) for text in row] for rank, row in enumerate(ours(schedule))
    }
    placed = torch_schedules._validate_schedule(actions, schedule.ranks, schedule.stages, schedule.microbatches)
    assert placed == dict(enumerate(schedule.placement))
    with_messages = torch_schedules._add_send_recv(actions, schedule.rank_of, schedule.stages)
    torch_schedules._simulate_comms_compute(with_messages, schedule.rank_of, schedule.stages)


@patient
@given(P, M)
def test_gpipe_and_1f1b_are_torchs(p, m):
    assert ours(gpipe(p, m)) == torchs("GPipe", p, m)
    if m >= p:  # with fewer, torch's table holds forwards of micro-batches that there are not
        # The last row of torch's table in 2.13 begins with micro-batch 1.
        assert ours(one_f_one_b(p, m))[:-1] == torchs("1F1B", p, m)[:-1]
    last = [f"{p - 1}{kind}{number}" for number in range(m) for kind in "FB"]
    assert ours(one_f_one_b(p, m))[-1] == last


@patient
@given(P, st.integers(1, 3), st.integers(1, 4))
def test_interleaved_is_torchs(p, groups, v):
    assert ours(interleaved(p, p * groups, v)) == torchs("Interleaved1F1B", p, p * groups, v)


@patient
@given(P, st.integers(1, 4))
def test_h1_is_torchs_interleaved_zero_bubble_with_one_chunk(p, groups):
    assert ours(zero_bubble_h1(p, p * groups)) == torchs("InterleavedZeroBubble", p, p * groups)


@patient
@given(P, M)
def test_v_is_torchs_up_to_when_weights_are_done_at_the_end(p, m):
    mine, table = ours(zero_bubble_v(p, m)), torchs("ZBVZeroBubble", p, m, 2)
    for row, other in zip(mine, table, strict=True):
        assert [action for action in row if "W" not in action] == [action for action in other if "W" not in action]
        assert sorted(row) == sorted(other)


def test_v_is_figure_8_of_the_paper():
    # Device 3 of 4, with 8 micro-batches, counted from 1: its cool-down has everything in it.
    figure = "1 2 3 1 4 2 5 3 1 1 4 2 2 6 1 1 5 3 3 7 2 2 6 4 4 8 3 3 7 5 5 4 4 8 6 6 5 7 6 8 7 5 8 7 6 8 7 8"
    row = zero_bubble_v(4, 8).actions[2]
    assert [action.microbatch + 1 for action in row] == [int(number) for number in figure.split()]


def test_by_hand():
    assert ours(naive(2, 2)) == [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    assert ours(one_f_one_b(3, 4))[0] == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3".split()
    assert ours(zero_bubble_h1(2, 3))[1] == "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2".split()
    assert ours(zero_bubble_h2(2, 3))[0] == "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2".split()
    assert str(interleaved(1, 1, 2)) == "rank 0: 0F0 1F0 1B0 0B0"


@patient
@given(sizes(), st.data())
def test_validate_finds_an_order_that_cannot_work(size, data):
    """Two actions of a rank change places; the graph of what comes before what has a cycle or it has none."""
    schedule = make(size)
    row = data.draw(st.sampled_from(range(schedule.ranks)))
    places = st.integers(0, len(schedule.actions[row]) - 1)
    first, second = data.draw(places), data.draw(places)
    actions = [list(actions) for actions in schedule.actions]
    actions[row][first], actions[row][second] = actions[row][second], actions[row][first]
    changed = replace(schedule, actions=tuple(map(tuple, actions)))
    try:
        TopologicalSorter(graph(changed)).prepare()
    except CycleError:
        with pytest.raises(ValueError, match="deadlock|which it needs"):
            validate(changed)
    else:
        validate(changed)


BROKEN = {  # how rank 0 and rank 1 are changed, and what is said
    "twice": ("0F0 0F1 0B0 0B1 0F1", "1F0 1B0 1F1 1B1", "rank 0, action 4: 0F1 comes twice"),
    "missing": ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1", "1B1, or 1I1 and 1W1, is missing on rank 1"),
    "half": ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1I1", "1W1 is missing on rank 1"),
    "both": ("0F0 0F1 0B0 0B1 0W1", "1F0 1B0 1F1 1B1", "0W1 is a part of 0B1, which is there too"),
    "no stage": ("0F0 0F1 0B0 0B1 2F0", "1F0 1B0 1F1 1B1", "2F0 does not exist; there are stages 0 to 1 and micro-"),
    "other rank": ("0F0 0F1 0B0 0B1 1F0", "1B0 1F1 1B1", "1F0 belongs to rank 1, which holds that stage"),
    "deadlock": (
        "0F0 0B0 0F1 0B1",
        "1F0 1F1 1B0 1B1",
        "mine: deadlock: rank 0 cannot do 0B0 before rank 1 does 1B0; rank 1 cannot do 1F1 before rank 0 does 0F1",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_validate_names_the_first_offense(broken):
    *rows, said = BROKEN[broken]
    actions = tuple(tuple(Action.parse(text) for text in row.split()) for row in rows)
    with pytest.raises(ValueError, match=f"mine: .*{said}|{said}"):
        validate(Schedule("mine", 2, actions, (0, 1)))


@pytest.mark.parametrize(
    ("schedule", "sizes", "message"),
    [
        (gpipe, (0, 2), "ranks=0"),
        (zero_bubble_v, (2, 0, 2), "microbatches=0"),
        (zero_bubble_v, (2, 2, 3), "chunks=3, but .* use"),
        (interleaved, (4, 6, 2), r"microbatches=6 is not a multiple of ranks=4.*microbatches=4 or 8, or the"),
        (two_buffered, (3, 6, 2), "every=2 is less than ranks=3, and 2BW asks for k ≥ p; use 3 or more"),
        (two_buffered, (3, 7, 3), "microbatches=7 is not a multiple of every=3; use whole batches"),
    ],
)
def test_bad_sizes(schedule, sizes, message):
    with pytest.raises(ValueError, match=message):
        schedule(*sizes)


# ---- without a flush ----


def at_versions(schedule: Schedule, rank: int) -> str:
    return str(schedule).split("\n")[rank].partition(": ")[2]


def test_versions_by_hand():
    """Three stages, five micro-batches. The middle stage is one micro-batch ahead of its backwards."""
    assert at_versions(WITHOUT_FLUSH["pipedream"](3, 5), 1) == (
        "1F0@0 1F1@0 1B0@0 1F2@1 1B1@0 1F3@2 1B2@1 1F4@3 1B3@2 1B4@3"
    )
    assert at_versions(WITHOUT_FLUSH["vertical-sync"](3, 5), 2) == (
        "2F0@0 2B0@0 2F1@0 2B1@0 2F2@0 2B2@0 2F3@1 2B3@1 2F4@2 2B4@2"
    )
    assert at_versions(WITHOUT_FLUSH["no-stashing"](3, 5), 1) == (
        "1F0@0 1F1@0 1B0@0 1F2@1 1B1@1 1F3@2 1B2@2 1F4@3 1B3@3 1B4@4"
    )
    # Batches of three: the third, from micro-batch 6 on, is the first that uses version 1.
    assert at_versions(WITHOUT_FLUSH["2bw"](3, 9), 2) == (
        "2F0@0 2B0@0 2F1@0 2B1@0 2F2@0 2B2@0 2F3@0 2B3@0 2F4@0 2B4@0 2F5@0 2B5@0 2F6@1 2B6@1 2F7@1 2B7@1 2F8@1 2B8@1"
    )


def test_kept_and_staleness_by_hand():
    """Four stages in the steady state, as in figure 4 of PipeDream and in the papers' equations."""
    expected = {
        "pipedream": ([4, 3, 2, 1], [3, 2, 1, 0]),
        "vertical-sync": ([4, 4, 4, 4], [3, 3, 3, 3]),
        "2bw": ([2, 2, 2, 2], [1, 1, 1, 1]),
        "no-stashing": ([1, 1, 1, 1], [0, 0, 0, 0]),
    }
    for name, (kept, staleness) in expected.items():
        schedule = WITHOUT_FLUSH[name](4, 12)
        assert [versions.kept(schedule, rank) for rank in range(4)] == kept
        assert [versions.staleness(schedule, rank)[-1] for rank in range(4)] == staleness
        # Without stashing all backwards but the first mix versions, on all ranks but the last.
        assert len(versions.mixed(schedule)) == (3 * 11 if name == "no-stashing" else 0)


@patient
@given(st.sampled_from(sorted(WITHOUT_FLUSH)), P, M, st.integers(0, 2))
def test_every_schedule_without_a_flush_is_valid_and_in_the_order_of_1f1b(name, p, m, more):
    k = p + more
    schedule = two_buffered(p, m * k, k) if name == "2bw" else WITHOUT_FLUSH[name](p, m)
    validate(schedule)
    assert schedule.actions == one_f_one_b(p, schedule.microbatches).actions


def test_validate_refuses_a_version_that_does_not_exist_yet():
    schedule = WITHOUT_FLUSH["pipedream"](2, 3)
    early = replace(schedule, versions=((0, 0, 0, 2, 0, 1), schedule.versions[1]))
    with pytest.raises(ValueError, match="rank 0, action 3: 0F2 uses version 2, but the newest is 1 after 1 backwards"):
        validate(early)
    with pytest.raises(ValueError, match=r"versions are for \[2\] actions, .* one for each of \[6, 6\] actions"):
        validate(replace(schedule, versions=((0, 0),)))
