"""The lesson of `minitrain.data_parallel.hierarchical_sgd`: bytes by kind of link, and nodes that learn as one rank."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from minitrain.comm import Ledger, World, axes
from minitrain.comm.control import gather_objects
from minitrain.costs import local_sgd as costs
from minitrain.data_parallel.hierarchical_sgd import HierarchicalSGD
from minitrain.data_parallel.naive import NaiveDataParallel
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.data_parallel import quadratics as lesson

LIN = "Lin et al. 2020, appendix D"
STEPS = 64  # as in `local_sgd`


def demo(world: World, every: int = 4, steps: int = 24, nodes: int = 0) -> list[Claim]:
    """Averages gradients within nodes and parameters across them; the table shows bytes on each kind of link.

    Args:
        every: H, the steps between two averages across nodes.
        steps: T, in which what is sent is counted.
        nodes: Nodes that the ranks are assumed to be on; 0 takes the smallest divisor of the ranks above 1.
    """
    n = world.size
    nodes = nodes or next((d for d in range(2, n + 1) if n % d == 0), 1)
    if n % nodes:
        raise ValueError(f"nodes={nodes} does not divide the {n} ranks; use one of their divisors")
    if every < 1 or steps < every:
        raise ValueError(f"every={every} must be at least 1, and at most steps={steps}")
    meshes = {number: axes(node=number, local=n // number) for number in dict.fromkeys((nodes, 1, n))}
    claims = [like_data_parallel(world, meshes, 20), *settled(world, meshes[nodes], nodes, every)]
    claims += sent(world, meshes, every, steps)
    model = make(world, meshes[nodes], every)
    with world.timed(f"{steps} steps"):
        lesson.train(model, steps)
    return claims


def make(world: World, mesh: DeviceMesh, every: int) -> HierarchicalSGD:
    within, across = mesh.get_group("local"), mesh.get_group("node")
    return HierarchicalSGD(lesson.Quadratic(world, world.rank), every, within, across)


def like_data_parallel(world: World, meshes: dict[int, DeviceMesh], steps: int) -> Claim:
    """The claim that a big sync in each step makes it data parallelism, and a single node does with any period."""
    right = lesson.train(NaiveDataParallel(lesson.Quadratic(world, world.rank)), steps)
    cases = {}
    for number, mesh in meshes.items():
        for every in (1, 5) if number == 1 else (1,):
            found = lesson.train(make(world, mesh, every), steps)
            cases[f"{number} nodes, H = {every}"] = Claim(
                "",
                "θ = θ_DP",
                0,
                float((found - right).abs().max()),
                source=LIN,
                how="compared",
                absolute=2 * lesson.rounding(steps, world.size),
            )
    what = f"largest difference from data parallelism after {steps} steps: H = 1, or all ranks on one node"
    return fold(what, cases, key=True)


def settled(world: World, mesh: DeviceMesh, nodes: int, every: int) -> list[Claim]:
    """Claims that the ranks of a node are alike, and that nodes settle where single ranks of their mean loss would."""
    local = world.size // nodes
    model = make(world, mesh, every)
    # One step past an average: within a node all is alike, and nodes have begun to part.
    lesson.train(model, every + 1)
    found = gather_objects(lesson.flat(model.module).tolist())
    different = max(
        sum(len(set(column)) > 1 for column in zip(*found[first : first + local], strict=True))
        for first in range(0, world.size, local)
    )
    groups = [list(range(first, first + local)) for first in range(0, world.size, local)]
    end = lesson.train(make(world, mesh, every), STEPS)
    gap = float((end - lesson.settled(groups, every).to(world.device)).abs().max())
    return [
        Claim(
            "elements that differ between ranks of a node, between two big syncs", "0", 0, different, "elements", LIN
        ),
        Claim(
            f"where nodes settle after {STEPS} steps, H = {every}: largest difference from theory",
            "Σ(1−q)c / Σ(1−q) over nodes",
            0,
            gap,
            source="derived",
            how="compared",
            absolute=2 * lesson.rounding(STEPS, world.size),
            key=True,
        ),
    ]


def sent(world: World, meshes: dict[int, DeviceMesh], every: int, steps: int) -> list[Claim]:
    """Claims on the bytes of both kinds of links."""
    within, across = {}, {}
    what = f"bytes in {steps} steps, H = {every}: "
    near, far = f"{what}all-reduces within a node, and all-gathers", f"{what}all-reduces across nodes"
    formulas = "T S + ⌊T/H⌋ S, padded", "⌊T/H⌋ ⌈elements/L⌉ w"
    if world.size == 1:
        return [Claim.needs_ranks(2, *pair, LIN, key=True) for pair in zip((near, far), formulas, strict=True)]
    for number, mesh in meshes.items():
        local = world.size // number
        model, case = make(world, mesh, every), f"{number} nodes of {local}"
        with Ledger() as ledger:
            lesson.train(model, steps)
        node, others = (mesh.get_group(axis).group_desc for axis in ("local", "node"))
        size, padded = (8 * elements for elements in (lesson.ELEMENTS, -(-lesson.ELEMENTS // local) * local))
        counted = ledger.payload("all_reduce", node) + ledger.payload("all_gather", node)
        predicted = sum(costs.bytes_within(size, padded, steps, every))
        within[case] = Claim("", formulas[0], predicted, counted, "B", LIN)
        predicted = costs.bytes_across(lesson.ELEMENTS, 8, steps, every, local)
        across[case] = Claim("", formulas[1], predicted, ledger.payload("all_reduce", others), "B", LIN)
    return [fold(near, within, key=True), fold(far, across, key=True)]
