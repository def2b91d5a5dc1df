"""The lesson of `minitrain.data_parallel.hierarchical_sgd`: bytes by kind of link, and nodes that learn as one rank."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from minitrain.comm import Ledger, World, axes
from minitrain.costs import local_sgd as costs
from minitrain.data_parallel.hierarchical_sgd import HierarchicalSGD
from minitrain.lessons.data_parallel import quadratics as lesson
from minitrain.lessons.rows import Claim, Rows

STEPS = 64  # as in `local_sgd`


def demo(world: World) -> list[Claim]:
    """Averages gradients within nodes and parameters across them; the table shows bytes on each kind of link."""
    every, steps = 4, 24  # H, T
    rows, n = Rows("Lin et al. 2020, appendix D"), world.size
    first = next((d for d in range(2, n + 1) if n % d == 0), 1)
    for nodes in dict.fromkeys((first, 1, n)):
        local, mesh, where = n // nodes, axes(node=nodes, local=n // nodes), f"{nodes} nodes"
        ranks = [list(range(node * local, (node + 1) * local)) for node in range(nodes)]
        what = f"where nodes settle after {STEPS} steps, H = {every}: largest difference from theory"
        end, place = lesson.train(make(world, mesh, every), STEPS), lesson.settled(ranks, every).to(world.device)
        lesson.close(rows, what, "Σ(1−q)c / Σ(1−q) over nodes", end, place, 2 * lesson.rounding(STEPS, n), where)

        with Ledger() as ledger:
            lesson.train(make(world, mesh, every), steps)
        within, across = (mesh.get_group(axis).group_desc for axis in ("local", "node"))
        size, padded = 8 * lesson.ELEMENTS, 8 * -(-lesson.ELEMENTS // local) * local
        sent = ledger.payload("all_reduce", within) + ledger.payload("all_gather", within)
        inside = sum(costs.bytes_within(size, padded, steps, every))
        outside, crossed = (
            costs.bytes_across(lesson.ELEMENTS, 8, steps, every, local),
            ledger.payload("all_reduce", across),
        )
        for what, formula, theory, counted in (
            ("all-reduces within a node, and all-gathers", "T S + ⌊T/H⌋ S, padded", inside, sent),
            ("all-reduces across nodes", "⌊T/H⌋ ⌈elements/L⌉ w", outside, crossed),
        ):
            what = f"bytes in {steps} steps, H = {every}: {what}"
            if n == 1:
                rows.needs(2, what, formula)
            else:
                rows.add(what, formula, theory, counted, case=where)
    return rows.claims()


def make(world: World, mesh: DeviceMesh, every: int) -> HierarchicalSGD:
    within, across = mesh.get_group("local"), mesh.get_group("node")
    return HierarchicalSGD(lesson.Quadratic(world, world.rank), every, within, across)
