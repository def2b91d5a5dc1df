"""Messages arrive whole, whatever their dtype, and bad ones are refused before anything is sent."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import axes, exchange, receive, send
from minitrain.comm.groups import new_group
from minitrain.ranks.ranks import RanksError

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.complex64]


def around(world, elements):
    """Each rank sends its numbers to the right and receives those of the left, in every dtype."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    same = []
    for dtype in DTYPES:
        mine = (torch.arange(elements) + world.rank).to(dtype)
        box = torch.zeros(elements, dtype=dtype)
        handle = exchange(mine, right, box, left)
        got = handle.wait()
        assert handle.wait() is box, "waiting twice is allowed"
        same.append(torch.equal(got, (torch.arange(elements) + left).to(dtype)))
    return same


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("elements", [0, 1000])
def test_exchange_around_a_ring(ranks, size, elements):
    assert ranks(size).run(around, elements) == [[True] * len(DTYPES)] * size


def to_ones_own_number(world):
    """Rank 1 is the first of its group, and sends to rank 1 of the group."""
    group = new_group([1, 2])
    box = torch.tensor([float(world.rank)])
    if world.rank == 1:
        send(box, 1, group).wait()
    if world.rank == 2:
        receive(box, 0, group).wait()
    return box.item()


def test_the_number_within_the_group_may_be_that_of_the_sender_among_all(ranks):
    assert ranks(3).run(to_ones_own_number) == [0.0, 1.0, 1.0]


def refused(world, peer, strided=False):
    peer = {"itself": world.rank, "the other": 1 - world.rank}.get(peer, peer)
    tensor = torch.zeros(4, 4)[:, 0] if strided else torch.zeros(4)
    said = []
    verbs = [lambda: send(tensor, peer), lambda: receive(tensor, peer)]
    if peer != world.rank:
        verbs.append(lambda: exchange(tensor, peer, tensor, peer))
    for verb in verbs:
        with pytest.raises(ValueError) as error:
            verb()
        said.append(str(error.value))
    return said


@pytest.mark.parametrize("peer", [-1, 2, "itself"])
def test_an_unknown_rank_is_named(ranks, peer):
    for rank, said in enumerate(ranks(2).run(refused, peer)):
        number = rank if peer == "itself" else peer
        assert all(f"={number} is no other rank of this group of 2" in text for text in said)


def both_directions(world):
    """Rank 1 takes what rank 0 sends late; rank 0 changes it as soon as its exchange has ended."""
    there = torch.full((1 << 20,), float(world.rank))
    here = torch.zeros_like(there)
    if world.rank == 0:
        exchange(there, 1, here, 1).wait()
        there.fill_(9.0)
    else:
        leaving = send(there, 0)
        time.sleep(0.5)
        receive(here, 0).wait()
        leaving.wait()
    return here.unique().tolist()


def test_an_exchange_ends_when_both_directions_have(ranks):
    assert ranks(2).run(both_directions) == [[1.0], [0.0]]


def test_a_tensor_with_gaps_is_refused(ranks):
    """gloo would send the wrong elements, and overwrite neighbors where it receives."""
    said = [text for each in ranks(2).run(refused, "the other", True) for text in each]
    assert all("strides (4,) is not contiguous" in text for text in said)


def grid(world, sizes):
    mesh = axes(**sizes)
    return {name: dist.get_process_group_ranks(mesh[name].get_group()) for name in sizes}


def test_axes_put_neighbors_on_the_last_axis(ranks):
    assert ranks(4).run(grid, {"dp": 2, "tp": 2})[3] == {"dp": [1, 3], "tp": [2, 3]}


@pytest.mark.parametrize(
    ("sizes", "says"), [({"dp": 3, "tp": 2}, "3 × 2 = 6 does not match the 4 ranks"), ({"dp": 0}, "dp=0")]
)
def test_axes_that_do_not_fit(ranks, sizes, says):
    with pytest.raises(RanksError, match=says):
        ranks(4).run(grid, sizes)
