"""A sum over ranks, and a whole made of parts, in the plainest way: every rank sends what it has to every other one.

**Idea.** In step k = 1 … n − 1 rank r sends to rank r + k and receives from rank r − k, both at once. No step needs
anything from the one before it, and no rank is busier than another. Every rank adds in the order of ranks, so all ranks
get the same bits.

**Source.** Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH", §4, where
long all-to-alls pair ranks in this way.

**What each rank holds.** Besides its own tensor of S bytes, the n − 1 tensors that it receives.

**What is sent, when and why.** (n − 1)·S bytes in n − 1 messages, on every rank. For two ranks there is nothing better.
For more there is: the rings of chapter 01 send 2(n − 1)/n · S, less than 2S however many ranks there are.

**Cost.** `minitrain.costs.matrix_product.to_everyone_bytes`.

**Also called.** `total` is an all-reduce, `collect` an all-gather, here by direct exchange.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.costs import matrix_product as costs
from minitrain.runtime.claims import Claim
from minitrain.runtime.control import agree, checking, gather_objects
from minitrain.runtime.demo import run
from minitrain.runtime.ledger import Ledger
from minitrain.runtime.messages import exchange
from minitrain.runtime.world import World


def total(tensor: Tensor, group: dist.ProcessGroup | None = None, *, check: bool | None = None) -> Tensor:
    """The sum of all ranks' tensors, on every rank.

    Args:
        tensor: This rank's summand; contiguous, of one shape and dtype on all ranks.
        group: The ranks that take part; None means everyone.
        check: Compare shapes and dtypes across ranks first; None: in demos and notebooks.

    Raises:
        ValueError: With `check`, on every rank: shapes or dtypes differ, or a tensor is not contiguous.
    """
    if checking(check):
        agree("total", tensor, group)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    summands = _exchanged(tensor, [tensor.shape] * ranks, rank, group)
    result = torch.zeros_like(tensor)
    for summand in summands:  # in the order of ranks, whatever the order of arrival: the same bits on every rank
        result += summand
    return result


def collect(
    part: Tensor, size: int, dim: int = 0, group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Tensor:
    """Put a tensor together that was split over ranks along `dim`, on every rank.

    Args:
        part: This rank's part, as `torch.tensor_split` cuts it; contiguous.
        size: The whole tensor's size along `dim`.
        dim: The dim that is split.
        group: The ranks that take part; None means everyone.
        check: Tell every rank of a wrong part; None: in demos and notebooks. Without it only the rank itself knows.

    Raises:
        ValueError: A part is not the one that its rank should bring.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    shapes = [list(part.shape) for _ in range(ranks)]
    for peer in range(ranks):
        shapes[peer][dim] = costs.share(size, ranks, peer)
    problems = _problem(part, shapes[rank][dim], size, dim, rank, ranks)
    if checking(check):
        problems = "; ".join(filter(None, gather_objects(problems, group)))
    if problems:
        raise ValueError(f"collect: {problems}")
    return torch.cat(_exchanged(part, shapes, rank, group), dim)


def _problem(part: Tensor, expected: int, size: int, dim: int, rank: int, ranks: int) -> str:
    shape = tuple(part.shape)
    if part.shape[dim] != expected:
        return (
            f"`part` of shape {shape} on rank {rank} should be {expected} long in dim {dim}, "
            f"as size={size} over {ranks} ranks; cut it with torch.tensor_split"
        )
    if not part.is_contiguous():
        return f"`part` of shape {shape} on rank {rank} is not contiguous; bring part.contiguous()"
    return ""


def _exchanged(tensor: Tensor, shapes: list, rank: int, group: dist.ProcessGroup | None) -> list[Tensor]:
    """Every rank's tensor, in the order of ranks."""
    ranks = len(shapes)
    tensors = [tensor if peer == rank else tensor.new_empty(shapes[peer]) for peer in range(ranks)]
    for step in range(1, ranks):
        to, source = (rank + step) % ranks, (rank - step) % ranks
        # Both directions at once: if each rank first sent and then received, all would wait for ever.
        exchange(tensor, to, tensors[source], source, group=group).wait()
    return tensors


def demo(world: World, elements: int = 1000) -> list[Claim]:
    """Adds one tensor from every rank, each rank sending its own to all others; the table shows bytes and the sum.

    Args:
        elements: Number of float32 values in a rank's tensor.
    """
    if elements < 1:
        raise ValueError(f"elements={elements} leaves nothing to send; use at least 1")
    rank, ranks = world.rank, world.size
    positions = torch.arange(elements, device=world.device) % 100
    mine = (positions * (rank + 1)).float()  # whole numbers, so that the sum is exact in any order
    with Ledger() as ledger:
        summed = total(mine)
    expected = positions * sum(range(1, ranks + 1))
    source = "Thakur et al. 2005, §4"
    whole = torch.arange(elements, device=world.device, dtype=torch.float32)
    part = whole.tensor_split(ranks)[rank].clone()
    with Ledger() as parts:
        collected = collect(part, size=elements)
    return [
        Claim("sum: bytes sent", "(n−1)·S", costs.to_everyone_bytes(elements, ranks), ledger.sent, "B", source),
        Claim("sum: messages sent", "n−1", ranks - 1, ledger.messages, "messages", source),
        Claim("sum: largest error", "0", 0, (summed - expected).abs().max().item(), source=source, how="compared"),
        Claim(
            "parts: bytes sent",
            "(n−1)·S_r, S_r this rank's part",
            costs.to_everyone_bytes(costs.share(elements, ranks, rank), ranks),
            parts.sent,
            "B",
            source,
        ),
        Claim("parts: elements out of place", "0", 0, (collected != whole).sum().item(), source=source, how="compared"),
    ]


if __name__ == "__main__":
    run(demo)
