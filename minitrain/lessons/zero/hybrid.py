"""The demo of `hybrid`: bytes on the links within a node and across nodes, what is held, and equal replicas."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, World, axes, native
from minitrain.comm.comm import Collectives, Comm
from minitrain.comm.control import gather_objects
from minitrain.comm.memory import optimizer_states
from minitrain.costs import hybrid_sharding as costs
from minitrain.costs import zero as zero_costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.zero import common as lesson
from minitrain.lessons.zero import small
from minitrain.zero import hybrid
from minitrain.zero.full.hybrid import HybridZero3
from minitrain.zero.full.stage3 import Zero3

FSDP = "Zhao et al. 2023, §3.2.2"


def groups(mesh: DeviceMesh, collectives: Collectives = native) -> tuple[Comm, Comm]:
    """The ranks of this node, and those at this place of all nodes, for the full form."""
    return Comm(mesh.get_group("local"), collectives), Comm(mesh.get_group("node"), collectives)


def on(mesh: DeviceMesh, collectives: Collectives = native) -> lesson.Stage:
    """The full form on the groups of a mesh, with the arguments of any other stage."""
    node, replicas = groups(mesh, collectives)

    def stage(module: nn.Module, optimizer_class: Any, comm: None, *rest: Any, **options: Any) -> HybridZero3:
        return HybridZero3(module, optimizer_class, node, *rest, replicas=replicas, **options)

    return stage


def names(mesh: DeviceMesh) -> tuple[str, str]:
    """By which a ledger knows the two groups."""
    return mesh.get_group("local").group_desc, mesh.get_group("node").group_desc


# ---- the small form ----


def make(world: World, mesh: DeviceMesh) -> hybrid.HybridZero3:
    """The chain in the small form."""
    node, replicas = mesh.get_group("local"), mesh.get_group("node")
    return small.wrap(world, partial(hybrid.HybridZero3, group=node, replicas=replicas))


def small_form(world: World, meshes: dict[int, DeviceMesh], micro_batches: int) -> list[Claim]:
    """Claims on what the small form sends over both kinds of links, holds, and computes."""
    within, across, held, same = {}, {}, {}, {}
    for nodes, mesh in meshes.items():
        local, case = world.size // nodes, f"{nodes} nodes of {world.size // nodes}"
        model, (near, far) = make(world, mesh), names(mesh)
        with Ledger() as ledger:
            small.step(world, model, micro_batches=micro_batches)
        padded = sum(local * zero_costs.shard_elements(line.elements, local) for line in small.lines())
        expected = costs.volume(padded, local, micro_batches)
        # A ledger counts a node of one rank, too, and a single node's all-reduce: they are calls like others.
        counted = ledger.payload("all_gather", near) + ledger.payload("reduce_scatter", near)
        within[case] = Claim("", "3A · padded Ψ", 4 * expected[0], counted, "B", FSDP)
        counted = ledger.payload("all_reduce", far)
        across[case] = Claim("", "padded Ψ / L", 4 * expected[1], counted, "B", FSDP)
        tensors = [tensor for unit in model.units for tensor in (unit.shard, unit.shard.grad, unit.flat)]
        predicted = zero_costs.held(3, small.lines(), local)
        states = small.storage_bytes([*tensors, *optimizer_states(model.optimizer)])
        held[case] = Claim("", "Σ of sw + sw + Ks + c, s = ⌈E/L⌉", sum(predicted.values()), states, "B", FSDP)
        node, replicas = groups(mesh)
        same[case] = small.like_full_form(
            world,
            partial(hybrid.HybridZero3, group=node.group, replicas=replicas.group),
            HybridZero3,
            comm=node,
            replicas=replicas,
        )
    step = f"in a step of {micro_batches} micro-batches"
    return [
        fold(f"small form: bytes of reduce-scatters and all-gathers within a node {step}", within, key=True),
        fold(f"small form: bytes of all-reduces across nodes {step}", across, key=True),
        fold("small form: bytes of parameters, gradients and optimizer states on each rank", held, key=True),
        fold(next(iter(same.values())).what, same),
    ]


# ---- the full form ----


def traffic(
    world: World, meshes: dict[int, DeviceMesh], layers: int, hidden: int, micro_batches: int
) -> tuple[Claim, Claim]:
    """Claims on the bytes that this rank sends through rings in a step, on each kind of link."""
    within, across = {}, {}
    for nodes, mesh in meshes.items():
        model, local = lesson.wrap(world, on(mesh, ring), layers, hidden), world.size // nodes
        for many in (micro_batches, 1):
            with Ledger() as ledger:
                lesson.step(world, model, micro_batches=many)
            expected = costs.step_traffic(lesson.lines(model), nodes, local, world.rank, many)
            near, far = (ledger.payload("send", name) for name in names(mesh))
            case = f"{nodes} nodes of {local}, A = {many}"
            within[case] = Claim("", "3A · (L−1)/L · padded Ψ", expected.within.bytes, near, "B", FSDP)
            across[case] = Claim("", "2(N−1)/N · padded Ψ/L", expected.across.bytes, far, "B", FSDP)
    step = f"in a step through rings, A = {micro_batches} micro-batches, and A = 1"
    return (
        fold(f"bytes sent by this rank within its node {step}", within),
        fold(f"bytes sent by this rank to other nodes {step}", across),
    )


def out_of_nodes(
    world: World, mesh: DeviceMesh, nodes: int, layers: int, hidden: int, micro_batches: int
) -> list[Claim]:
    """Claims on the bytes that leave this rank's node in a step, and on those that leave it with stage 3 over all."""
    local = world.size // nodes
    node = world.rank // local
    what = f"bytes that leave a node in a step of A = {micro_batches} micro-batches, "
    rows = (
        (f"{what}hybrid", "2(N−1)/N · padded Ψ"),
        (f"{what}stage 3 over all ranks", "3A · (n−1)/n · padded Ψ"),
    )
    if nodes == 1:
        return [Claim.needs_ranks(2, *row, FSDP, key=True) for row in rows]
    model = lesson.wrap(world, on(mesh, ring), layers, hidden)
    with Ledger() as ledger:
        lesson.step(world, model, micro_batches=micro_batches)
    flat = lesson.wrap(world, Zero3, layers, hidden, comm=Comm(collectives=ring))
    with Ledger() as flat_ledger:
        lesson.step(world, flat, micro_batches=micro_batches)
    # Of the flat ring only the messages to a rank of another node.
    left = sum(
        entry.bytes
        for entry in flat_ledger.entries
        if entry.operation == "send" and entry.peer is not None and entry.peer // local != node
    )
    mine = (ledger.payload("send", names(mesh)[1]), left)
    together = [sum(each) for each in zip(*gather_objects(mine, mesh.get_group("local")), strict=True)]
    lines = lesson.lines(model)
    predicted = (
        costs.out_of_a_node(lines, nodes, local, node),
        costs.out_of_a_node_without(lines, nodes, local, micro_batches),
    )
    return [
        Claim(*row, expected, measured, "B", FSDP, key=True)
        for row, expected, measured in zip(rows, predicted, together, strict=True)
    ]


def mean_of_parts(world: World, meshes: dict[int, DeviceMesh], layers: int, hidden: int) -> Claim:
    """The claim that each shard is the mean over all ranks of all nodes."""
    cases = {f"{nodes} nodes": lesson.mean_of_parts(world, on(mesh), layers, hidden) for nodes, mesh in meshes.items()}
    return fold(next(iter(cases.values())).what, cases, key=True)


def alike(world: World, meshes: dict[int, DeviceMesh], layers: int, hidden: int) -> Claim:
    """The claim that the replicas stay equal, to the last bit: all nodes get the same sums, and step alike."""
    cases = {}
    for nodes, mesh in meshes.items():
        model = lesson.wrap(world, on(mesh), layers, hidden)
        for number in range(3):
            lesson.step(world, model, number)
        mine: list[Tensor] = [line.shard.cpu() for line in model.lines]
        first = gather_objects(mine, mesh.get_group("node"))[0]
        different = sum(int((one != other).sum()) for one, other in zip(mine, first, strict=True))
        cases[f"{nodes} nodes"] = Claim("", "0", 0, different, "elements", "derived", "compared")
    return fold("elements that differ between nodes after 3 steps of AdamW from unequal weights", cases)


def demo(world: World, layers: int = 2, hidden: int = 34, micro_batches: int = 3, nodes: int = 0) -> list[Claim]:
    """Divides the model within nodes, with a replica on each; the table shows bytes on both kinds of links.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
        micro_batches: A, the micro-batches of each rank in a step.
        nodes: Nodes that the ranks are assumed to be on; 0 takes the smallest divisor of the ranks above 1.
    """
    n = world.size
    nodes = nodes or next((d for d in range(2, n + 1) if n % d == 0), 1)
    if n % nodes:
        raise ValueError(f"nodes={nodes} does not divide the {n} ranks; use one of their divisors")
    meshes = {number: axes(node=number, local=n // number) for number in dict.fromkeys((nodes, 1, n))}
    claims = [
        *small_form(world, meshes, micro_batches),
        *out_of_nodes(world, meshes[nodes], nodes, layers, hidden, micro_batches),
        *traffic(world, meshes, layers, hidden, micro_batches),
        mean_of_parts(world, meshes, layers, hidden),
        # A single node has no other that it could differ from.
        alike(world, {nodes: meshes[nodes], n: meshes[n]}, layers, hidden),
    ]
    model = lesson.wrap(world, on(meshes[nodes]), layers, hidden)
    with world.timed("a step of forward, backward, synchronize and step"):
        lesson.step(world, model)
    return claims
