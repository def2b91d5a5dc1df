"""hierarchical: every verb on every mesh, bytes on both kinds of links, and what is no mesh."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from minitrain.collectives.full import hierarchical
from minitrain.comm import Ledger, axes
from minitrain.costs import communication as costs
from tests.collectives import verbs
from tests.drawn import first

MESHES = first([(3, 2), (1, 3), (2, 3), (3, 1), (2, 2), (1, 1)], 2)


def wrong_on_mesh(world, nodes, local):
    return verbs.wrong(world, "full.hierarchical", axes(node=nodes, local=local))


@pytest.mark.parametrize(("nodes", "local"), MESHES)
def test_every_verb_gives_what_one_rank_would(ranks, nodes, local):
    size = nodes * local
    assert ranks(size).run(wrong_on_mesh, nodes, local) == [[]] * size


def small_on_mesh(world, nodes, local):
    """The small form: what is wrong, what differs from the full form, and the distance from one device."""
    mesh = axes(node=nodes, local=local)
    groups = mesh.get_group("local"), mesh.get_group("node")
    return (
        verbs.wrong(world, "hierarchical", *groups),
        verbs.unlike_full(world, "hierarchical", groups, mesh),
        verbs.distance_from_one_device(world, "hierarchical", *groups),
    )


@pytest.mark.parametrize(("nodes", "local"), [(1, 2), (2, 1), (3, 1), (1, 3), (2, 2), (2, 3)])
def test_the_small_form_is_the_full_one_and_one_device(ranks, nodes, local):
    for wrong, unlike, distance in ranks(nodes * local).run(small_on_mesh, nodes, local):
        assert not wrong and not unlike and distance < 1e-12


def wrong_in_slice(world):
    """A mesh of a mesh: nodes × ranks for each of two replicas."""
    mesh = axes(replica=2, node=2, local=1)["node", "local"]
    first = 2 * (world.rank // 2)
    return verbs.wrong(world, "full.hierarchical", mesh, members=range(first, first + 2))


def test_a_mesh_may_be_a_part_of_the_ranks(ranks):
    assert ranks(4).run(wrong_in_slice) == [[]] * 4


@pytest.mark.parametrize(("nodes", "local"), first([(2, 3), (3, 1), (2, 2)]))
def test_sums_are_torchs_within_rounding_and_the_same_bits_everywhere(ranks, nodes, local):
    results = ranks(nodes * local).run(verbs.random_sum, "full.hierarchical", {"node": nodes, "local": local})
    assert len({bits for bits, _, _ in results}) == 1
    assert all(outside == 0 for _, outside, _ in results)


def miscounted(world, nodes, local):
    """Traffic within the node and across, against theory; what differs."""
    mesh, differ = axes(node=nodes, local=local), []
    for elements in (0, 1, world.size - 1, world.size + 1, 7 * world.size, 101):
        for verb in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
            with Ledger() as ledger:
                getattr(hierarchical, verb)(torch.ones(elements), group=mesh, check=False).wait()
            predicted = getattr(costs, f"hierarchical_{verb}")(elements, 4, nodes, local, world.rank)
            found = []
            for axis in ("local", "node"):
                group = mesh.get_group(axis).group_desc
                sent = [entry.bytes for entry in ledger.entries if entry.operation == "send" and entry.group == group]
                found.append((sum(sent), len(sent)))
            if tuple(found) != predicted:
                differ.append((verb, elements, found, predicted))
    return differ


@pytest.mark.parametrize(("nodes", "local"), MESHES)
def test_each_rank_sends_what_theory_says_on_both_kinds_of_links(ranks, nodes, local):
    size = nodes * local
    assert ranks(size).run(miscounted, nodes, local) == [[]] * size


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("shape", "all_reduce: the shape of `tensor` differs between ranks: (4, 6) on rank 0,1,2, (4, 5) on rank 3"),
        ("dtype", "all_reduce: the dtype of `tensor` differs between ranks: torch.float32 on rank 0,1,2"),
        ("gaps", "all_reduce: `tensor` is not contiguous on rank 3"),
        ("gaps everywhere, unchecked", "all_reduce: `tensor` of shape (4, 6) and strides (1, 4) is not contiguous"),
        ("unknown source", "broadcast: source=4 is no rank of this group of 4; use 0 to 3"),
        ("two sources", "broadcast: `source` differs between ranks: [0, 1, 0, 1] in rank order"),
    ],
)
def test_every_rank_gets_the_same_error_and_nothing_hangs(ranks, how, says):
    for said in ranks(4).run(verbs.misuse, "full.hierarchical", how):
        assert said.startswith(says)


def no_mesh(world):
    said = []
    for group in (None, axes(everyone=world.size), axes(replica=1, node=1, local=world.size)):
        try:
            hierarchical.all_reduce(torch.ones(2), group)
        except ValueError as error:
            said.append(str(error))
    dist.barrier()
    return said


def test_what_is_no_2d_mesh_is_refused(ranks):
    for said in ranks(2).run(no_mesh):
        assert said == [
            "all_reduce: group=None is no mesh with two axes; use axes(node=…, local=…)",
            "all_reduce: group=a mesh with 1 axes is no mesh with two axes; use axes(node=…, local=…)",
            "all_reduce: group=a mesh with 3 axes is no mesh with two axes; use axes(node=…, local=…)",
        ]
