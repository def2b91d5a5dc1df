"""Mistakes that learners make in a cell: each ends with a clear error, and not with wrong numbers or a long silence."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import messages
from minitrain.ranks.failures import RanksError
from minitrain.watch.in_flight import Flights, in_the_way
from minitrain.watch.observers import Communication

VERBS = (
    "from minitrain.comm.messages import *\nfrom minitrain.collectives.full import ring\n"
    "x, y = torch.ones(6), torch.zeros(6)\n"
)

MISTAKES = {
    "other shapes": ("all_reduce(torch.ones(2 + rank)).wait()", "the shape of `tensor` differs between ranks"),
    "other dtypes, plain": (
        "dist.broadcast(torch.ones(2).to(torch.float64 if rank else torch.float32), 0)",
        "float32 on rank 0, torch.float64 on rank 1,2",
    ),
    "rows that do not fit": (
        "all_to_all(torch.ones(3, 2), [1, 1, 1], [1, 1, 2 if rank == 1 else 1])",
        "rank 2 sends rank 1 1 of its rows, and that rank expects 2",
    ),
    "a collective left out, plain": (
        "if rank != 1:\n    dist.all_reduce(x)",
        "rank 1 ended without it; call all_reduce on",
    ),
    "other verbs": (
        "if rank == 0:\n    dist.all_reduce(x)\nelse:\n    dist.broadcast(x, 0)",
        "ranks are in different calls: all_reduce on rank 0, broadcast on rank 1,2",
    ),
    "another order of lines": (
        "def first():\n    dist.all_reduce(x)\ndef then():\n    dist.all_reduce(y)\n"
        "if rank == 0:\n    first(); then()\nelse:\n    then(); first()",
        "the same calls in different orders",
    ),
    "another order of tensors": (
        "for t in ((x, y) if rank == 0 else (y, x)):\n    ring.all_reduce(t)",
        "the same calls in different orders",
    ),
    "all send": ("send(x, (rank + 1) % 3).wait()\nreceive(y, (rank - 1) % 3).wait()", "all of them send, and none"),
    "all receive, plain": ("dist.recv(y, (rank - 1) % 3)\ndist.send(x, (rank + 1) % 3)", "all of them receive, and"),
    "nobody receives": (
        "if rank == 0:\n    send(x, 1).wait()",
        r"rank 1 ended without it; call receive\(into, source=0\) on rank 1, or leave the send out",
    ),
    "nobody sends": (
        "if rank == 0:\n    dist.recv(x, 2)",
        r"rank 2 ended without it; call send\(tensor, to=0\) on rank 2, or leave the receive out",
    ),
    "a message too long, plain": (
        "if rank == 0:\n    dist.send(torch.ones(5), 1)\nif rank == 1:\n    dist.recv(torch.ones(3), 0)",
        r"shape \[5\] and torch.float32, but what is to be received on rank 1 in .* has shape \[3\]",
    ),
    "changed while it is sent": (
        "if rank == 0:\n    leaving = send(x, 1)\n    x.fill_(99)\n    leaving.wait()\n"
        "if rank == 1:\n    receive(x, 0).wait()",
        r"fill_ would change memory that send\(to=1\) .* still sends",
    ),
    "read too early": (
        "under_way = dist.all_reduce(x, async_op=True)\nx.sum()",
        "sum would read memory that all_reduce",
    ),
}

RIGHT = {
    "read while it is sent": (
        "both = exchange(x, (rank + 1) % 3, y, (rank - 1) % 3)\nassert x.sum() == 6\nassert both.wait().sum() == 6"
    ),
    "other lines on other ranks": "if rank == 0:\n    dist.all_reduce(x)\nelse:\n    y = x\n    dist.all_reduce(y)",
    "waited for twice": (
        "work = dist.isend(x, (rank + 1) % 3)\ndist.recv(y, (rank - 1) % 3)\nwork.wait()\nassert work.wait()"
    ),
    "a batch of torch's": (
        "batch = [dist.P2POp(dist.isend, x, (rank + 1) % 3), dist.P2POp(dist.irecv, y, (rank - 1) % 3)]\n"
        "[work.wait() for work in dist.batch_isend_irecv(batch)]\nassert y.sum() == 6"
    ),
    "slow ranks in a chain": (  # rank 2 waits for rank 1, which waits for rank 0, and is slow itself once it has waited
        "import time\nif rank == 0:\n    time.sleep(3)\n    send(x, 1).wait()\n"
        "if rank == 1:\n    receive(y, 0).wait()\n    time.sleep(3)\n    send(y, 2).wait()\n"
        "if rank == 2:\n    receive(y, 1).wait()\ndist.barrier()"
    ),
    "a tensor with gaps, plain": "x = torch.ones(2, 3).t()\ndist.all_reduce(x)\nassert x.sum() == 18",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_an_error_that_says_what_is_wrong(ranks, mistake):
    code, says = MISTAKES[mistake]
    with pytest.raises(RanksError, match=says):
        ranks(3).execute(VERBS + code)
    # Nothing of it is left behind, such as a message that would be taken for the next one.
    after = "dist.all_reduce(x)\nassert exchange(x, (rank + 1) % 3, y, (rank - 1) % 3).wait().tolist() == [3] * 6"
    ranks(3).execute(VERBS + after)


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_right_is_left_alone(ranks, case):
    ranks(3).execute(VERBS + RIGHT[case])


def backward_adds_to_what_is_sent(world):
    x = torch.ones(3, requires_grad=True)
    x.grad = torch.zeros(3)
    under_way = dist.all_reduce(x.grad, async_op=True)
    (2 * x).sum().backward()
    under_way.wait()


def test_backward_is_looked_at_as_well(ranks):
    with pytest.raises(RanksError, match="would change memory that all_reduce"):
        ranks(2).run(backward_adds_to_what_is_sent)


def test_memory_is_compared_by_bytes_and_not_by_tensors():
    memory = torch.zeros(8, 8)
    flights = Flights(Communication("receive", memory[2], None, 1), "receive")
    try:
        assert in_the_way(memory, writes=False)
        assert in_the_way(memory.view(-1)[16:17], writes=False)
        assert in_the_way(memory[:, 3], writes=False)
        assert not in_the_way(memory.view(-1)[:16], writes=True)
        assert not in_the_way(memory[3:], writes=True)
        assert not in_the_way(memory[::4], writes=True)
    finally:
        flights.ends()
    assert not in_the_way(memory, writes=True)


def memory_given_back(world):
    """Memory that is given back is in nobody's way: others get its addresses."""
    whole = torch.ones(2 * world.size)
    handle = messages.reduce_scatter(whole)
    address = whole.data_ptr()
    del whole
    dist.barrier()
    again = [torch.zeros(2 * world.size) for _ in range(50)]  # some of them where the first one was
    handle.wait()
    return address > 0 and len(again) == 50


def test_memory_that_is_given_back_is_free(ranks):
    assert ranks(2).run(memory_given_back) == [True, True]


def test_a_handle_that_was_dropped_guards_to_the_end_of_its_cell(ranks):
    x = "from minitrain.comm.messages import all_reduce\nx = torch.ones(3)\nall_reduce(x)"
    with pytest.raises(RanksError, match="add_ would change memory that all_reduce"):
        ranks(2).execute(f"{x}\nx += 1")
    ranks(2).execute(x)
    ranks(2).execute("x += 1")
