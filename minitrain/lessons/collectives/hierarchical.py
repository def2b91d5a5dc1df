"""The lesson of `minitrain.collectives.hierarchical`: what its demo claims, and how that is measured.

Two nodes of two ranks are a point at which several formulas give one number (L−1 = N−1 = 1), so each claim is also
tried with all ranks on one node and with each on a node of its own. The paper has the all-reduce. What the other verbs
send follows from the rings that they are made of, and so does the time of a flat ring, in which every step waits for
the links between nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from minitrain.collectives import hierarchical as small
from minitrain.collectives.full import ring
from minitrain.collectives.full.hierarchical import FAST, SLOW, all_gather, all_reduce, broadcast, reduce_scatter
from minitrain.comm import World, axes
from minitrain.comm.timeline import Links
from minitrain.costs import communication as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.collectives import common as lesson

PAPER = "Mikami et al. 2018"


def demo(world: World, elements: int = 1 << 20, nodes: int = 0) -> list[Claim]:
    """Adds within nodes, across, and within; the table shows bytes on both kinds of links, and a flat ring's time.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
        nodes: Number of nodes that the ranks are assumed to be on; 0 takes the smallest divisor of the ranks above 1.
    """
    lesson.something_to_send(elements)
    n = world.size
    nodes = nodes or next((d for d in range(2, n + 1) if n % d == 0), 1)
    if n % nodes:
        raise ValueError(f"nodes={nodes} does not divide the {n} ranks; use one of their divisors")
    # The one that is shown first.
    meshes = {number: axes(node=number, local=n // number) for number in dict.fromkeys((nodes, 1, n))}
    mesh = meshes[nodes]
    formula, held = "⌈elements/L⌉ · 4 B", 4 * costs.chunk_size(elements + 1, n // nodes, 0)
    values: dict[str, Claim] = {}
    near: dict[str, Claim] = {}
    for number, its in meshes.items():
        bits, distance = lesson.values(world, {f"{number} nodes": None}, "hierarchical", verbs(its))
        values[f"{number} nodes"], near[f"{number} nodes"] = bits, distance
    claims = [
        *traffic(world, meshes, elements),
        lesson.memory(world, "hierarchical", two_groups(mesh), elements + 1, formula, held, PAPER),
        fold(values[f"{nodes} nodes"].what, values, key=True),
        fold(near[f"{nodes} nodes"].what, near),
        *times(world, meshes, elements),
    ]
    even, local = -(-elements // n) * n, n // nodes
    _, timeline = lesson.virtual_run(world, partial(all_reduce, group=mesh), even, links=_links(local))
    _, ring_timeline = lesson.virtual_run(world, ring.all_reduce, even, links=_links(local))
    world.figure(lambda: lesson.side_by_side({"one flat ring": ring_timeline, f"{nodes} nodes of {local}": timeline}))
    tensor = lesson.tensor(world, elements)
    with world.timed(f"hierarchical all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(tensor, mesh, check=False).wait()
    return claims


def two_groups(mesh: DeviceMesh) -> Callable[..., Any]:
    """The small form's all-reduce on the groups of a mesh."""
    return partial(small.all_reduce, within=mesh.get_group("local"), across=mesh.get_group("node"))


def verbs(mesh: DeviceMesh) -> dict[str, lesson.Verb]:
    """The verbs on a mesh that has all ranks, as if they took a group."""

    def on_mesh(verb: Callable[..., Any]) -> Callable[..., Any]:
        return lambda tensor, *root, group: verb(tensor, *root, group=mesh)

    def from_groups(tensor: Any, group: None) -> Any:
        return two_groups(mesh)(tensor)

    return {
        "all-reduce": lesson.Verb(
            on_mesh(all_reduce), costs.hierarchical_all_reduce, "2(L−1)/L · S", "2(N−1)/N · S/L", PAPER, from_groups
        ),
        "reduce-scatter": lesson.Verb(
            on_mesh(reduce_scatter), costs.hierarchical_reduce_scatter, "(L−1)/L · S", "(N−1)/N · S/L", "derived"
        ),
        "all-gather": lesson.Verb(
            on_mesh(all_gather), costs.hierarchical_all_gather, "(L−1)/L · S", "(N−1)/N · S/L", "derived"
        ),
        "broadcast": lesson.Verb(
            on_mesh(broadcast), costs.hierarchical_broadcast, "S; 0 before the source", "", "derived", rooted=True
        ),
    }


def traffic(world: World, meshes: dict[int, DeviceMesh], elements: int) -> list[Claim]:
    """Claims on what each rank sends over each of the two kinds of links, and in how many messages."""
    n, rows = world.size, {}
    counts = "2(L−1) + 2(N−1), L−1 + N−1, L + N"
    for number, mesh in meshes.items():
        for size in (2999 if rows else elements + 1, max(1, n - 1)):
            for name, verb in verbs(mesh).items():
                for form, start, root in verb.forms(None):
                    arguments = (root,) if root else ()
                    assert verb.cost is not None
                    predicted = verb.cost(size, 4, number, n // number, world.rank, *arguments)
                    ledger = lesson.count(world, start, size)
                    case = f"{name}, {form}, {size:,} elements on {number} nodes"
                    for level, axis in (("within its node", "local"), ("across nodes", "node")):
                        bytes_there = ledger.payload("send", mesh.get_group(axis).group_desc)
                        sent = predicted.within if axis == "local" else predicted.across
                        formula = verb.messages if axis == "node" and not verb.rooted else verb.sent
                        claim = Claim("", formula, sent.bytes, bytes_there, "B", verb.source)
                        row = ROWS[name].format(level)
                        rows.setdefault(row, {})[f"{case}, {level}"] = claim
                    messages = predicted.within.messages + predicted.across.messages
                    claim = Claim("", counts, messages, ledger.messages, "messages", PAPER)
                    rows.setdefault("all-reduce, its halves, broadcast: messages sent by this rank", {})[case] = claim
    on = f"hierarchical, up to {elements + 1:,} float32, "
    return [fold(on + row, cases, key=row.startswith("all-reduce: bytes")) for row, cases in rows.items()]


# In which row a verb's bytes are: both halves of an all-reduce have one formula, and so have both links of a broadcast.
ROWS = {
    "all-reduce": "all-reduce: bytes sent by this rank {}",
    "reduce-scatter": "reduce-scatter, and all-gather: bytes sent by this rank {}",
    "all-gather": "reduce-scatter, and all-gather: bytes sent by this rank {}",
    "broadcast": "broadcast: bytes sent by this rank within its node, and across nodes",
}


def times(world: World, meshes: dict[int, DeviceMesh], elements: int) -> list[Claim]:
    """Claims on the time until the last rank is done: through the nodes, and around one flat ring."""
    n, hierarchy, flat = world.size, {}, {}
    for number, mesh in meshes.items():
        local, where = n // number, f"{number} nodes of {n // number}"
        even = 12 * n if hierarchy else -(-elements // n) * n  # all chunks take the same time
        for form, start, _ in verbs(mesh)["all-reduce"].forms(None):
            seconds, _ = lesson.virtual_run(world, start, even, links=_links(local))
            predicted = costs.hierarchical_all_reduce_time(4 * even, number, local, FAST, SLOW)
            formula = "2(L−1)(α + βS/L) + 2(N−1)(α' + β'S/(LN))"
            hierarchy[f"{form} on {where}"] = Claim(
                "", formula, predicted, seconds, "virtual s", PAPER, how="virtual clock"
            )
        seconds, _ = lesson.virtual_run(world, ring.all_reduce, even, links=_links(local))
        predicted = costs.ring_all_reduce_time(4 * even, n, *(SLOW if number > 1 else FAST))
        formula = "2(n−1)(α' + β'S/n)"
        flat[where] = Claim("", formula, predicted, seconds, "virtual s", "derived", how="virtual clock")
    first = next(iter(meshes))
    of = f"all-reduce on {first} nodes of {n // first}, and on other nodes: time until the last rank is done"
    return [fold(f"hierarchical {of}", hierarchy, key=True), fold(f"flat ring {of}", flat, key=True)]


def _links(local: int) -> Links:
    """Fast links between ranks of one node, slow ones between nodes."""
    return lambda source, to: FAST if source // local == to // local else SLOW
