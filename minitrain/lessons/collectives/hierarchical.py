"""The lesson of `minitrain.collectives.hierarchical`: what its demo claims, and how that is measured."""

from __future__ import annotations

from functools import partial

from minitrain.collectives import hierarchical as small
from minitrain.collectives.full import ring
from minitrain.collectives.full.hierarchical import FAST, SLOW, all_gather, all_reduce, broadcast, reduce_scatter
from minitrain.comm import World, axes
from minitrain.comm.timeline import Links
from minitrain.costs import communication as costs
from minitrain.lessons import Claim
from minitrain.lessons.collectives import common as lesson


def demo(world: World, elements: int = 1 << 20, nodes: int = 0) -> list[Claim]:
    """Adds within nodes, across, and within; the table shows bytes on both kinds of links, and a flat ring's time.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
        nodes: Number of nodes that the ranks are thought to be on; 0 takes the smallest divisor of the ranks above 1.
    """
    lesson.something_to_send(elements)
    n, rank, paper = world.size, world.rank, "Mikami et al. 2018"
    nodes = nodes or next((d for d in range(2, n + 1) if n % d == 0), 1)
    if n % nodes:
        raise ValueError(f"nodes={nodes} does not divide the {n} ranks; use one of their divisors")
    local = n // nodes
    mesh = axes(node=nodes, local=local)

    size = elements + 1
    two_groups = partial(small.all_reduce, within=mesh.get_group("local"), across=mesh.get_group("node"))
    predicted = costs.hierarchical_all_reduce(size, 4, nodes, local, rank)
    claims = lesson.small_form(
        world,
        "hierarchical all-reduce",
        two_groups,
        partial(all_reduce, group=mesh),
        size,
        predicted.within + predicted.across,
        ("≈ 2(L−1)/L · S + 2(N−1)/N · S/L", "2(L−1) + 2(N−1)"),
        ("⌈elements/L⌉ · 4 B", 4 * costs.chunk_size(size, local, 0)),
        paper,
    )
    verbs = {
        "all-reduce": (all_reduce, costs.hierarchical_all_reduce, "≈ 2(L−1)/L · S", "≈ 2(N−1)/N · S/L"),
        "reduce-scatter": (reduce_scatter, costs.hierarchical_reduce_scatter, "≈ (L−1)/L · S", "≈ (N−1)/N · S/L"),
        "all-gather": (all_gather, costs.hierarchical_all_gather, "≈ (L−1)/L · S", "≈ (N−1)/N · S/L"),
        "broadcast": (broadcast, costs.hierarchical_broadcast, "S, 0 on the last", "S, 0 on the last"),
    }
    for name, (verb, cost, within, across) in verbs.items():
        ledger = lesson.count(world, partial(verb, group=mesh), elements + 1)
        predicted = cost(elements + 1, 4, nodes, local, rank)
        on = f"hierarchical {name} of {elements + 1:,} float32: bytes sent by this rank "
        fast, slow = (
            sum(e.bytes for e in ledger.entries if e.operation == "send" and e.group == mesh.get_group(axis).group_desc)
            for axis in ("local", "node")
        )
        claims.append(Claim(on + "within its node", within, predicted.within.bytes, fast, "B", paper))
        claims.append(
            Claim(on + "across nodes", across, predicted.across.bytes, slow, "B", paper, key=name == "all-reduce")
        )
    claims += lesson.same_sums(world, partial(all_reduce, group=mesh), "hierarchical all-reduce")

    even = -(-elements // n) * n  # rounded up, so that all chunks take the same time
    hierarchy, timeline = lesson.virtual_run(world, partial(all_reduce, group=mesh), even, links=_links(local))
    flat, ring_timeline = lesson.virtual_run(world, ring.all_reduce, even, links=_links(local))
    of = f"all-reduce of {even:,} float32 on {nodes} nodes of {local}: time until the last rank is done"
    predicted = costs.hierarchical_all_reduce_time(4 * even, nodes, local, FAST, SLOW)
    formula = "2(L−1)(α + βS/L) + 2(N−1)(α' + β'S/(LN))"
    claims.append(
        Claim(f"hierarchical {of}", formula, predicted, hierarchy, "virtual s", paper, how="virtual clock", key=True)
    )
    predicted = costs.ring_all_reduce_time(4 * even, n, *(SLOW if nodes > 1 else FAST))
    formula = "2(n−1)(α' + β'S/n)"
    claims.append(Claim(f"flat ring {of}", formula, predicted, flat, "virtual s", paper, how="virtual clock", key=True))
    world.figure(lambda: lesson.side_by_side({"one flat ring": ring_timeline, f"{nodes} nodes of {local}": timeline}))

    values = lesson.tensor(world, elements)
    with world.timed(f"hierarchical all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(values, mesh, check=False).wait()
    return claims


def _links(local: int) -> Links:
    """Fast links between ranks of one node, slow ones between nodes."""
    return lambda source, to: FAST if source // local == to // local else SLOW
