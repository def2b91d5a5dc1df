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


def ring_broadcast(wire, cut, source, names=None):
    n = len(cut)
    for chunk in cut:
        for hop in range(n - 1):
            wire.send((names or range(n))[(source + hop) % n], chunk)


@given(elements, ranks)
def test_ring(count, n):
    for rank in range(n):
        for formula, replay in (
            (costs.ring_reduce_scatter, lambda w: ring_reduce_scatter(w, chunks(count, n))),
            (costs.ring_all_gather, lambda w: ring_all_gather(w, chunks(count, n))),
            (costs.ring_broadcast, lambda w: ring_broadcast(w, chunks(count, n), 0)),
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
    cut, everything = chunks(count, n), set(range(count))
    reduce_scatter, all_gather, all_reduce, broadcast = Wire(), Wire(), Wire(), Wire()
    for rank in range(1, n):
        reduce_scatter.send(rank, everything)
        reduce_scatter.send(0, cut[rank])
        all_gather.send(rank, cut[rank])
        all_gather.send(0, everything)
        all_reduce.send(rank, everything)
        all_reduce.send(0, everything)
        broadcast.send(0, everything)
    for rank in range(n):
        assert costs.naive_reduce_scatter(count, 3, n, rank) == reduce_scatter.by(rank)
        assert costs.naive_all_gather(count, 3, n, rank) == all_gather.by(rank)
        assert costs.naive_all_reduce(count, 3, n, rank) == all_reduce.by(rank)
        assert costs.naive_broadcast(count, 3, n, rank) == broadcast.by(rank)
    received_by_the_root = (n - 1) * count * 3
    assert costs.naive_root_load(count, 3, n) == received_by_the_root + all_reduce.by(0)[0]


@given(elements, ranks, st.data())
def test_tree(count, n, data):
    """Who has it sends to the place as far away as the ranks that have it are many: places 0, then 0–1, then 0–3, …"""
    root = data.draw(st.integers(0, n - 1))
    down, up, everything = Wire(), Wire(), set(range(count))
    width = 1 << (n - 1).bit_length()
    while width > 1:  # the furthest first
        for place in range(0, n, width):
            if place + width // 2 < n:
                down.send((place + root) % n, everything)
                up.send((place + width // 2 + root) % n, everything)
        width //= 2
    for rank in range(n):
        assert costs.tree_broadcast(count, 3, n, rank, root) == down.by(rank)
        assert costs.tree_reduce(count, 3, n, rank, root) == up.by(rank)
        if root == 0:
            both = [a + b for a, b in zip(down.by(rank), up.by(rank), strict=True)]
            assert costs.tree_all_reduce(count, 3, n, rank) == tuple(both)


def fold(n):
    """The cores in order, and for each rank the core that works for it."""
    size = 1 << (n.bit_length() - 1)
    folded = 2 * (n - size)
    cores = [rank for rank in range(n) if rank >= folded or rank % 2]
    return cores, {rank: rank + 1 if rank < folded and rank % 2 == 0 else rank for rank in range(n)}


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
    assert len({frozenset(items) for items in held.values()}) == 1


@given(elements, ranks)
def test_halving(count, n):
    everything, cut = set(range(count)), chunks(count, n)
    cores, works_for = fold(n)
    folded = [rank for rank in range(n) if works_for[rank] != rank]
    owned = {core: set().union(*(cut[rank] for rank in range(n) if works_for[rank] == core)) for core in cores}
    equal = dict(zip(cores, chunks(count, len(cores)), strict=True))
    reduce_scatter, all_gather, all_reduce = Wire(), Wire(), Wire()
    for rank in folded:
        reduce_scatter.send(rank, everything)
        reduce_scatter.send(works_for[rank], cut[rank])
        all_gather.send(rank, cut[rank])
        all_gather.send(works_for[rank], everything)
        all_reduce.send(rank, everything)
        all_reduce.send(works_for[rank], everything)
    halve(reduce_scatter, cores, owned)
    double(all_gather, cores, owned)
    halve(all_reduce, cores, equal)
    double(all_reduce, cores, equal)
    for rank in range(n):
        assert costs.halving_reduce_scatter(count, 3, n, rank) == reduce_scatter.by(rank)
        assert costs.halving_all_gather(count, 3, n, rank) == all_gather.by(rank)
        assert costs.halving_all_reduce(count, 3, n, rank) == all_reduce.by(rank)


@given(elements, st.integers(1, 5), st.integers(1, 5), st.data())
def test_hierarchical(count, nodes, local, data):
    n = nodes * local
    cut = chunks(count, n)
    source = data.draw(st.integers(0, n - 1))
    within, across = defaultdict(Wire), defaultdict(Wire)
    shares = [set().union(*cut[place::local]) for place in range(local)]
    for node in range(nodes):
        row = [node * local + place for place in range(local)]
        ring_reduce_scatter(within["reduce_scatter"], shares, row)
        ring_all_gather(within["all_gather"], shares, row)
        ring_reduce_scatter(within["all_reduce"], chunks(count, local), row)
        ring_all_gather(within["all_reduce"], chunks(count, local), row)
        ring_broadcast(within["broadcast"], chunks(count, local), source % local, row)
    for place in range(local):
        column = [node * local + place for node in range(nodes)]
        ring_reduce_scatter(across["reduce_scatter"], cut[place::local], column)
        ring_all_gather(across["all_gather"], cut[place::local], column)
        part = chunks(len(chunks(count, local)[place]), nodes)
        ring_reduce_scatter(across["all_reduce"], part, column)
        ring_all_gather(across["all_reduce"], part, column)
        if place == source % local:
            ring_broadcast(across["broadcast"], chunks(count, nodes), source // local, column)
    for rank in range(n):
        for verb in ("reduce_scatter", "all_gather", "all_reduce"):
            predicted = getattr(costs, f"hierarchical_{verb}")(count, 3, nodes, local, rank)
            assert predicted == (within[verb].by(rank), across[verb].by(rank)), verb
        predicted = costs.hierarchical_broadcast(count, 3, nodes, local, rank, source)
        assert predicted == (within["broadcast"].by(rank), across["broadcast"].by(rank))


@given(elements, ranks)
def test_chunks_are_those_of_tensor_split(count, n):
    cut = torch.arange(count).tensor_split(n)
    assert [costs.chunk_size(count, n, rank) for rank in range(n)] == [len(chunk) for chunk in cut]
    starts = [costs.chunk_start(count, n, rank) for rank in range(n + 1)]
    assert starts == [sum(len(chunk) for chunk in cut[:rank]) for rank in range(n + 1)]


@given(ranks, st.integers(1, 1000))
def test_where_elements_divide_the_ring_sends_the_least_possible(n, each):
    """2(n−1)/n · S, the lower bound of Patarasuk & Yuan; halving sends as little for powers of two, and no less."""
    total = 4 * each * n
    least = 2 * (n - 1) * 4 * each
    assert costs.busiest(costs.ring_all_reduce, each * n, 4, n).bytes == least
    halving = costs.busiest(costs.halving_all_reduce, each * n, 4, n).bytes
    assert halving == least if n & (n - 1) == 0 else halving > least
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
