"""What collectives in their full form do first: check the tensor, and see it as flat chunks, one for each rank.

A tensor of any shape is looked at as one flat line of elements. `torch.tensor_split` cuts it into as many chunks as
there are ranks; where that does not divide, the first chunks have one element more. With fewer elements than ranks the
last chunks are empty, and an empty chunk is never sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from minitrain.comm.control import agree, checking, contiguous, gather_objects
from minitrain.comm.groups import backend
from minitrain.watch.nccl import COMPLEX, DTYPES

Chunks = Sequence[Tensor]


def flat_view(
    verb: str, tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None, check: bool | None
) -> Shaped[Tensor, " elements"]:
    """Check what a verb was given, and return the tensor's elements as one flat line that shares its memory.

    Args:
        check: Compare shape and dtype across ranks first. None: in demos and notebooks, where torch's debug level is
            not OFF.

    Raises:
        ValueError: This rank is not in the group, or `tensor` is not contiguous. With checking also, on every rank
            alike, if shape, dtype or contiguity differ between ranks, or ranks call different verbs.
    """
    if dist.get_rank(group) < 0:
        raise ValueError(f"{verb}: this rank ({dist.get_rank()}) is not in the group; only its members may call")
    if checking(check):
        agree(verb, tensor, group)  # by control messages, which the ledger does not count
    contiguous(verb, tensor)
    carried_by_nccl(verb, tensor, group)
    return flat_line(tensor)


def carried_by_nccl(verb: str, tensor: Tensor, group: dist.ProcessGroup | None) -> None:
    """Refuse a dtype that NCCL does not have, such as int16, where NCCL would carry it."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if backend(group) == "nccl" and dtype not in DTYPES | COMPLEX:
        raise ValueError(
            f"{verb}: NCCL cannot carry {dtype}; use int32, or where nothing is added, tensor.view(torch.uint8)"
        )


def flat_line(tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, " elements"]:
    """The elements of a contiguous tensor as one flat line that shares its memory."""
    # detach: a parameter is overwritten in place, which autograd should neither forbid nor record.
    return tensor.detach().view(-1)


def check_root(verb: str, name: str, root: int, group: dist.ProcessGroup | None, check: bool | None) -> None:
    """Check the rank from which a broadcast starts, or at which a reduce ends, the verb's argument `name`.

    Raises:
        ValueError: `root` is no rank of the group, or (with checking) ranks name different ones.
    """
    ranks = dist.get_world_size(group)
    named = gather_objects(root, group, verb) if checking(check) else [root]
    if len(set(named)) > 1:
        raise ValueError(f"{verb}: `{name}` differs between ranks: {named} in rank order; name the same on all")
    if not 0 <= named[0] < ranks:
        raise ValueError(f"{verb}: {name}={named[0]} is no rank of this group of {ranks}; use 0 to {ranks - 1}")
