"""The lesson of `minitrain.zero.hybrid`: bytes within a node and across nodes, and the mean of all ranks.

The ranks are assumed to be on several nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, World, axes
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import Group
from minitrain.costs import hybrid_sharding as costs
from minitrain.costs import zero as zero_costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.zero import small
from minitrain.zero import hybrid
from minitrain.zero.full.hybrid import HybridZero3
from minitrain.zero.full.stage3 import Zero3


def demo(world: World) -> list[Claim]:
    """Divides the model within nodes, with a replica on each; the table shows bytes on both kinds of links."""
    micro_batches, n, rows = 3, world.size, Rows("Zhao et al. 2023, §3.2.2")
    nodes = next((d for d in range(2, n + 1) if n % d == 0), 1)
    local, mesh = n // nodes, axes(node=nodes, local=n // nodes)
    node, replicas = mesh.get_group("local"), mesh.get_group("node")
    small_form = partial(hybrid.HybridZero3, group=node, replicas=replicas)
    model = small.wrap(world, small_form)
    with Ledger() as ledger:
        small.step(world, model, micro_batches=micro_batches)
    padded = sum(local * zero_costs.shard_elements(line.elements, local) for line in small.lines())
    within, across = costs.volume(padded, local, micro_batches)
    step = f"in a step of {micro_batches} micro-batches"
    what = f"small form: bytes of reduce-scatters and all-gathers within a node {step}"
    counted = sum(ledger.payload(verb, node.group_desc) for verb in ("all_gather", "reduce_scatter"))
    rows.add(what, "3A · padded Ψ · w", 4 * within, counted)
    what, counted = f"small form: bytes of all-reduces across nodes {step}", ledger.payload("all_reduce")
    rows.add(what, "padded Ψ · w / L", 4 * across, counted)
    small.like_full_form(rows, world, small_form, partial(HybridZero3, replicas=replicas), comm=Comm(node))

    # The full forms, through rings, whose messages a ledger sees.
    what = f"bytes that leave a node in a step of A = {micro_batches} micro-batches"
    model = small.wrap(world, HybridZero3, comm=Comm(node, ring), replicas=Comm(replicas, ring))
    sent = leaving(world, model, micro_batches, node, lambda entry: entry.group == replicas.group_desc)
    predicted = costs.out_of_a_node(small.lines(), nodes, local, world.rank // local)
    rows.add(f"{what}, hybrid", "2(N−1)/N · padded Ψ · w", predicted, sent)
    model = small.wrap(world, Zero3, comm=Comm(collectives=ring))
    sent = leaving(world, model, micro_batches, node, lambda entry: entry.peer // local != world.rank // local)
    predicted = costs.out_of_a_node_without(small.lines(), nodes, local, micro_batches)
    rows.add(f"{what}, stage 3 over all ranks", "3A · (n−1)/n · padded Ψ · w", predicted, sent)
    return rows.claims()


def leaving(world: World, model: Any, micro_batches: int, node: Group, leaves: Callable[[Any], bool]) -> int:
    """Bytes that all ranks of this rank's node together send to other nodes in a step."""
    with Ledger() as ledger:
        small.step(world, model, micro_batches=micro_batches)
    sent = [entry.bytes for entry in ledger.entries if entry.operation == "send" and leaves(entry)]
    return sum(gather_objects(sum(sent), node))
