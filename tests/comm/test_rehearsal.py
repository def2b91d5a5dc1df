"""A rehearsal on real ranks: what goes well with gloo, and would not with NCCL, is found, with its rank and line."""

from __future__ import annotations

from tempfile import NamedTemporaryFile

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import messages
from minitrain.comm.control import leave
from minitrain.comm.groups import backend, new_group
from minitrain.comm.messages import exchange, receive, send
from minitrain.ranks import Ranks
from minitrain.ranks.failures import RanksError
from minitrain.watch.memories import GPU
from minitrain.watch.rehearsal import Rehearsal


@pytest.fixture(scope="module")
def rehearsing():
    # Unchecked: the checks find some of these mistakes while they happen.
    with Ranks(4, device="cpu", check=False, rehearse="nccl") as ranks:
        yield ranks


def two_way(world):
    """Each of two ranks sends, and then receives: gloo has room for a message, and NCCL waits for its other end."""
    if world.rank < 2:
        x, y = torch.ones(3, device=world.device), torch.zeros(3, device=world.device)
        leaving = send(x, 1 - world.rank)
        receive(y, 1 - world.rank).wait()
        leaving.wait()


def batched(world):
    x, y = torch.ones(3, device=world.device), torch.zeros(3, device=world.device)
    exchange(x, (world.rank + 1) % 4, y, (world.rank - 1) % 4).wait()
    return y.tolist()


def two_way_after_a_batch(world):
    batched(world)
    two_way(world)


def other_order(world):
    groups = [new_group([0, 1, 2, 3]), new_group([0, 1, 2, 3])]
    x = [torch.ones(3, device=world.device) for _ in groups]
    order = (0, 1) if world.rank else (1, 0)
    for handle in [messages.all_reduce(x[index], groups[index]) for index in order]:
        handle.wait()
    leave(groups)


def members_alone(world):
    if world.rank < 2:
        group = dist.new_group([0, 1], use_local_synchronization=True)
        dist.barrier(group)  # one that ends the group at once breaks gloo's connections of one that is still making it
        leave([group])


def ends_in_set_order(world):
    groups = [new_group([0, 1, 2, 3]), new_group([0, 1, 2, 3])]
    dist.barrier()  # one that ends a group at once breaks gloo's connections of one that is still making it
    for group in groups if world.rank % 2 else groups[::-1]:
        dist.destroy_process_group(group)


def ends_in_our_order(world):
    groups = [new_group([0, 1, 2, 3]), new_group([0, 1])]
    dist.barrier()
    leave(group for group in groups if isinstance(group, dist.ProcessGroup))


def from_file(world):
    with NamedTemporaryFile() as file:
        messages.all_reduce(torch.from_file(file.name, shared=True, size=3)).wait()


def computes_across(world):
    return (torch.ones(3, device=world.device) * torch.ones(3)).sum().item()


def short_integers(world):
    x = torch.ones(3, dtype=torch.int16, device=world.device)
    exchange(x, (world.rank + 1) % 4, torch.zeros_like(x), (world.rank - 1) % 4).wait()


def reads(world):
    x = torch.ones(3, device=world.device)
    assert x.to("cpu").device == torch.device("cpu") != x.device
    assert x.to(world.device) is x
    assert x.to(torch.float64).device == (2 * x).device == torch.ones_like(x).device == world.device
    assert torch.tensor([1.0], device=world.device).device == world.device
    assert backend() == "nccl"
    layer = torch.nn.Linear(3, 3).to(world.device)
    layer(x).sum().backward()
    assert layer.weight.grad.device == world.device
    before = world.rehearsal.reads.total()
    x.sum().item()
    assert x[0] > 0
    assert world.rehearsal.reads.total() == before + 2


MISTAKES = {
    two_way_after_a_batch: r"hang: .*\(a circle\): rank 0 in send\(to=1\) .*test_rehearsal.py, line",
    other_order: r"one at a time: .*\(a circle\): rank 0 in all_reduce of 0,1,2,3#\d+ .*test_rehearsal.py, line",
    members_alone: r"make: ranks differ in the next group: rank 0: new_group .* rank 2: nothing",
    ends_in_set_order: r"end: ranks end groups in different orders: rank 0 in destroy_process_group of .*rank 1 in",
    from_file: r"memory: all_reduce of everyone .* is given a tensor in the CPU's memory",
    computes_across: r"memory: mul is given a tensor of the CPU, of shape \[3\], together with one of the GPU",
    short_integers: r"dtype: send\(to=1\) of everyone .* is given int16",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_what_gloo_forgives_is_found(rehearsing, mistake):
    with pytest.raises(RanksError, match=MISTAKES[mistake]):
        rehearsing.run(mistake)


@pytest.mark.parametrize("right", [batched, ends_in_our_order], ids=lambda right: right.__name__)
def test_what_is_right_is_left_alone(rehearsing, right):
    rehearsing.run(right)


def test_a_cell_is_rehearsed(rehearsing):
    rehearsing.execute("x = torch.ones(2, device=world.device)\ndist.all_reduce(x)")
    with pytest.raises(RanksError, match=r"memory: all_reduce of everyone \(<cell \d+ of execute>, line 1\)"):
        rehearsing.execute("dist.all_reduce(torch.ones(2))")


def test_devices_are_told_apart(rehearsing):
    rehearsing.run(reads)


def begins_and_ends(world):
    before = torch.tensor, torch.Tensor.to, torch.Tensor.cpu, dist.Work.wait
    rehearsal = Rehearsal.start()
    assert torch.ones(2, device=GPU).device == GPU
    assert torch.Tensor.to is not before[1]
    rehearsal.stop()
    assert (torch.tensor, torch.Tensor.to, torch.Tensor.cpu, dist.Work.wait) == before
    assert torch.ones(2).device == torch.device("cpu")
    assert backend() == "gloo"


def test_torch_is_given_back_its_functions(ranks):
    ranks(1).run(begins_and_ends)
