"""communication: every formula against a replay of who sends which element, and the times against each other."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import communication as costs

elements, ranks = st.integers(0, 70), st.integers(1, 20)
some = st.floats(1e-9, 1e-3)


def chunks(count, n):
    """The elements of each chunk."""
    return [set(chunk.tolist()) for chunk in torch.arange(count).tensor_split(n)]


class Wire:
    """Counts what is sent: `messages` is a list of (from, to, set of elements). Empty ones are not sent."""

    def __init__(self):
        self.sent = defaultdict(lambda: [0, 0])

    def send(self, rank, items):
        if items:
            self.sent[rank][0] += 3 * len(items)  # an element has 3 bytes here
            self.sent[rank][1] += 1

    def by(self, rank):
        return tuple(self.sent[rank])


def ring_reduce_scatter(wire, cut, names=None):
    """Chunk c starts at rank c+1 and goes round until it is at rank c."""
    n = len(cut)
    for c in range(n):
        for hop in range(n - 1):
            wire.send((names or range(n))[(c + 1 + hop) % n], cut[c])


def ring_all_gather(wire, cut, names=None):
    """Chunk c starts at rank c and goes round until it is at rank c−1."""
    n = len(cut)
    for c in range(n):
        for hop in range(n - 1):
            wire.send((names or range(n))[(c + hop) % n], cut[c])


@given(elements, ranks)
def test_ring(count, n):
    for rank in range(n):
        for formula, replay in (
            (costs.ring_reduce_scatter, lambda w: ring_reduce_scatter(w, chunks(count, n))),
            (costs.ring_all_gather, lambda w: ring_all_gather(w, chunks(count, n))),
        ):
            wire = Wire()
            replay(wire)
            assert formula(count, 3, n, rank) == wire.by(rank)
        wire = Wire()
        ring_reduce_scatter(wire, chunks(count, n))
        ring_all_gather(wire, chunks(count, n))
        assert costs.ring_all_reduce(count, 3, n, rank) == wire.by(rank)


@given(elements, ranks)
def test_naive(count, n):
    all_reduce, everything = Wire(), set(range(count))
    for rank in range(1, n):
        all_reduce.send(rank, everything)
        all_reduce.send(0, everything)
    for rank in range(n):
        assert costs.naive_all_reduce(count, 3, n, rank) == all_reduce.by(rank)
    received_by_the_root = (n - 1) * count * 3
    assert costs.naive_root_load(count, 3, n) == received_by_the_root + all_reduce.by(0)[0]


@given(elements, ranks)
def test_tree(count, n):
    """Who has it sends to the place as far away as the ranks that have it are many: places 0, then 0–1, then 0–3, …"""
    wire, everything = Wire(), set(range(count))
    width = 1 << (n - 1).bit_length()
    while width > 1:  # the furthest first
        for place in range(0, n, width):
            if place + width // 2 < n:
                wire.send(place, everything)
                wire.send(place + width // 2, everything)
        width //= 2
    for rank in range(n):
        assert costs.tree_all_reduce(count, 3, n, rank) == wire.by(rank)


def halve(wire, cores, owned):
    """Each core hands over what the other half of the cores will own, half by half."""
    if len(cores) == 1:
        return
    middle = len(cores) // 2
    lower, upper = cores[:middle], cores[middle:]
    for mine, others in ((lower, upper), (upper, lower)):
        for core in mine:
            wire.send(core, set().union(*(owned[other] for other in others)))
        halve(wire, mine, owned)


def double(wire, cores, owned):
    """The pairs of pairs, from the nearest: each core sends all it has."""
    held = {core: set(owned[core]) for core in cores}
    distance = 1
    while distance < len(cores):
        before = {core: set(items) for core, items in held.items()}
        for index, core in enumerate(cores):
            partner = cores[index ^ distance]
            wire.send(core, before[core])
            held[core] = held[core] | before[partner]
        distance *= 2


@given(elements, st.sampled_from([1, 2, 4, 8, 16]))
def test_halving(count, n):
    wire, cores, owned = Wire(), range(n), chunks(count, n)
    halve(wire, cores, owned)
    double(wire, cores, owned)
    for rank in range(n):
        assert costs.halving_all_reduce(count, 3, n, rank) == wire.by(rank)


@given(elements, st.integers(1, 5), st.integers(1, 5))
def test_hierarchical(count, nodes, local):
    within, across = Wire(), Wire()
    for node in range(nodes):
        row = [node * local + place for place in range(local)]
        ring_reduce_scatter(within, chunks(count, local), row)
        ring_all_gather(within, chunks(count, local), row)
    for place in range(local):
        column = [node * local + place for node in range(nodes)]
        part = chunks(len(chunks(count, local)[place]), nodes)
        ring_reduce_scatter(across, part, column)
        ring_all_gather(across, part, column)
    for rank in range(nodes * local):
        predicted = costs.hierarchical_all_reduce(count, 3, nodes, local, rank)
        assert predicted == (within.by(rank), across.by(rank))


@given(elements, ranks)
def test_chunks_are_those_of_tensor_split(count, n):
    cut = torch.arange(count).tensor_split(n)
    assert [costs.chunk_size(count, n, rank) for rank in range(n)] == [len(chunk) for chunk in cut]
    starts = [costs.chunk_start(count, n, rank) for rank in range(n + 1)]
    assert starts == [sum(len(chunk) for chunk in cut[:rank]) for rank in range(n + 1)]


@given(ranks, st.integers(1, 1000))
def test_where_elements_divide_the_ring_sends_the_least_possible(n, each):
    """2(n−1)/n · S, the lower bound of Patarasuk & Yuan; halving sends as little."""
    total = 4 * each * n
    least = 2 * (n - 1) * 4 * each
    assert costs.busiest(costs.ring_all_reduce, each * n, 4, n).bytes == least
    if n & (n - 1) == 0:
        assert costs.busiest(costs.halving_all_reduce, each * n, 4, n).bytes == least
    assert costs.busiest(costs.naive_all_reduce, each * n, 4, n).bytes == (n - 1) * total


@given(st.integers(4, 300), some, some)
def test_ring_and_tree_take_the_same_time_at_the_crossing(n, alpha, beta):
    size = costs.crossover(n, alpha, beta)
    model = (n, alpha, beta)
    assert costs.ring_all_reduce_time(size, *model) == pytest.approx(costs.tree_all_reduce_time(size, *model))
    assert costs.ring_all_reduce_time(size / 2, *model) > costs.tree_all_reduce_time(size / 2, *model)
    assert costs.ring_all_reduce_time(size * 2, *model) < costs.tree_all_reduce_time(size * 2, *model)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_with_few_ranks_the_ring_is_never_slower(n):
    assert costs.crossover(n, 1e-5, 1e-9) == 0
    for size in (1, 1000, 10**9):
        assert costs.ring_all_reduce_time(size, n, 1e-5, 1e-9) <= costs.tree_all_reduce_time(size, n, 1e-5, 1e-9)


@given(st.integers(1, 300), some, some, st.integers(1, 10**9))
def test_one_level_is_a_ring(n, alpha, beta, size):
    ring = costs.ring_all_reduce_time(size, n, alpha, beta)
    assert costs.hierarchical_all_reduce_time(size, 1, n, (alpha, beta), (1, 1)) == pytest.approx(ring)
    assert costs.hierarchical_all_reduce_time(size, n, 1, (1, 1), (alpha, beta)) == pytest.approx(ring)


def test_128_nodes_of_8_need_not_be_much_slower_than_one():
    """Across nodes 25 GB/s a rank, within 200: what matters is S/L on the slow links, and the latency of N steps."""
    within, across = (3e-6, 1 / 200e9), (10e-6, 1 / 25e9)
    size = 2 * 10**9
    one = costs.hierarchical_all_reduce_time(size, 1, 8, within, across)
    many = costs.hierarchical_all_reduce_time(size, 128, 8, within, across)
    flat = costs.ring_all_reduce_time(size, 1024, *across)
    assert one < many < 2.5 * one < flat
    small = 10**5  # latency decides: 254 slow steps
    assert costs.hierarchical_all_reduce_time(small, 128, 8, within, across) > 50 * costs.hierarchical_all_reduce_time(
        small, 1, 8, within, across
    )


@given(st.integers(2, 300), some, st.integers(1, 10**9))
def test_a_perfect_ring_shows_the_links_own_bandwidth(n, beta, size):
    seconds = costs.ring_all_reduce_time(size, n, 0.0, beta)
    assert costs.bus_bandwidth(size, seconds, n) == pytest.approx(1 / beta)
    assert costs.bus_bandwidth(size, seconds / 2, n, "all_gather") == pytest.approx(1 / beta)
    assert costs.bus_bandwidth(size, beta * size, n, "broadcast") == pytest.approx(1 / beta)


# nccl-tests: the summary of doc/PERFORMANCE.md, and GatherGetBw, ScatterGetBw and SendRecvGetBw of src/*.cu.
PUBLISHED_BUS_FACTORS = {
    "all_reduce": "2*(n-1)/n",
    "reduce_scatter": "(n-1)/n",
    "all_gather": "(n-1)/n",
    "broadcast": "1",
    "reduce": "1",
    "all_to_all": "(n-1)/n",
    "gather": "(n-1)/n",
    "scatter": "(n-1)/n",
    "send_receive": "1",
}


@pytest.mark.parametrize(("operation", "factor"), PUBLISHED_BUS_FACTORS.items())
def test_bus_bandwidths_have_the_published_factors(operation, factor):
    for n in (1, 2, 3, 8, 1000):
        expected = 10e9 / 0.25 * eval(factor, {"n": n})
        assert costs.bus_bandwidth(10e9, 0.25, n, operation) == pytest.approx(expected)


def test_an_unknown_operation_has_no_bus_bandwidth():
    with pytest.raises(ValueError, match="operation='barrier' is unknown; use one of all_reduce"):
        costs.bus_bandwidth(1, 1, 2, "barrier")
