"""The lesson of `minitrain.collectives.hierarchical`: bytes on fast and on slow links, and the time of a flat ring.

Two nodes of two ranks are a point at which several formulas give one number (L−1 = N−1 = 1), so each claim is also
tried with all ranks on one node and with each on a node of its own. In a flat ring every step waits for the links
between nodes.
"""

from __future__ import annotations

from functools import partial

from minitrain.collectives import hierarchical, ring
from minitrain.comm import World, axes
from minitrain.comm.timeline import Links
from minitrain.costs import communication as costs
from minitrain.lessons.collectives import common as lesson
from minitrain.lessons.pictures import collectives as pictures
from minitrain.lessons.rows import Claim, Rows

# α and β, in powers of two as in `common`: of the links within a node, and of those between nodes.
FAST, SLOW = (2.0**-19, 2.0**-35), (2.0**-15, 2.0**-32)


def demo(world: World) -> list[Claim]:
    """Adds within nodes, across, and within; the table shows bytes on both kinds of links, and a flat ring's time."""
    elements = 1 << 20
    rows, n = Rows("Mikami et al. 2018"), world.size
    first = next((d for d in range(2, n + 1) if n % d == 0), 1)
    end = f"all-reduce on {first} nodes of {n // first}, and on other nodes: time until the last rank is done"
    for nodes in dict.fromkeys((first, 1, n)):
        local, mesh, where = n // nodes, axes(node=nodes, local=n // nodes), f"{nodes} nodes"
        groups = {"within": mesh.get_group("local"), "across": mesh.get_group("node")}
        start = partial(hierarchical.all_reduce, **groups)
        for size in (elements + 1 if nodes == first else 2999, max(1, n - 1)):
            ledger = lesson.count(world, start, size)
            predicted = costs.hierarchical_all_reduce(size, 4, nodes, local, world.rank)
            for level, sent, group, formula in (
                ("within its node", predicted.within, groups["within"], "2(L−1)/L · S"),
                ("across nodes", predicted.across, groups["across"], "2(N−1)/N · S/L"),
            ):
                what = f"hierarchical, up to {elements + 1:,} float32, all-reduce: bytes sent by this rank {level}"
                counted = ledger.payload("send", group.group_desc)
                rows.add(what, formula, sent.bytes, counted, case=f"{size:,} elements on {where}")
        lesson.values(world, rows, "hierarchical", hierarchical, "all_reduce", where=where, **groups)

        even = -(-elements // n) * n if nodes == first else 12 * n  # all chunks take the same time
        seconds, timeline = lesson.virtual_run(world, start, even, links=links(local))
        formula = "2(L−1)(α + βS/L) + 2(N−1)(α' + β'S/(LN))"
        predicted = costs.hierarchical_all_reduce_time(4 * even, nodes, local, FAST, SLOW)
        rows.time(f"hierarchical {end}", formula, predicted, seconds, case=where)
        seconds, around = lesson.virtual_run(world, ring.all_reduce, even, links=links(local))
        predicted = costs.ring_all_reduce_time(4 * even, n, *(SLOW if nodes > 1 else FAST))
        rows.time(f"flat ring {end}", "2(n−1)(α' + β'S/n)", predicted, seconds, "derived", case=where)
        if nodes == first:
            lines = {"one flat ring": around, f"{nodes} nodes of {local}": timeline}
            world.figure(partial(pictures.side_by_side, lines))
    return rows.claims()


def links(local: int) -> Links:
    """Fast links between ranks of one node, slow ones between nodes."""
    return lambda source, to: FAST if source // local == to // local else SLOW
