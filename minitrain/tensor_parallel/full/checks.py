"""What every file of this chapter checks before it sends: who is in the group, what divides, what must be equal.

Membership and sizes are checked always. That all ranks bring the same values is checked when asked for: it reads the
tensor once and sends a few bytes beside the data, where the ledger does not look, and waits for the slowest rank.
"""

from __future__ import annotations

import zlib

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from minitrain.comm.control import checking, gather_objects


def place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """This rank within the group, and the group's size.

    Raises:
        ValueError: This rank is not in the group.
    """
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"group: this rank ({dist.get_rank()}) is not in it; only its members may make or call this")
    return rank, dist.get_world_size(group)


def check_split(name: str, size: int, ranks: int) -> int:
    """What each rank gets of `size`, which must divide.

    Raises:
        ValueError: It does not, or a rank would get nothing.
    """
    if size < 1 or size % ranks:
        raise ValueError(
            f"{name}={size} cannot be split over {ranks} tensor-parallel ranks; use a multiple of {ranks} for {name}"
        )
    return size // ranks


def check_same(
    what: str, name: str, tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None, check: bool | None
) -> None:
    """Check that all ranks bring the same tensor, bit by bit.

    Tensor-parallel ranks that see different tokens, weights or dropout masks compute nonsense and raise no error.

    Args:
        what: Who asks, for the error.
        name: The argument's name, for the error.
        tensor: What must be equal.
        group: The ranks that talk; None means everyone.
        check: Whether to look at all. None: in demos and notebooks only.

    Raises:
        ValueError: On every rank alike, naming which ranks bring what.
    """
    if not checking(check):
        return
    seen: dict[str, list[int]] = {}
    for rank, theirs in enumerate(gather_objects(_fingerprint(tensor), group)):
        seen.setdefault(theirs, []).append(rank)
    if len(seen) > 1:
        listed = ", ".join(f"{value} on rank {','.join(map(str, ranks))}" for value, ranks in seen.items())
        raise ValueError(
            f"{what}: `{name}` must be equal on all tensor-parallel ranks and differs: {listed}; bring the same batch, "
            "weights and dropout masks on all, or pass check=False to compute with what is there"
        )


def _fingerprint(tensor: Tensor) -> str:
    described = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    if tensor.is_meta:
        return described
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy()
    return f"{described} with checksum {zlib.crc32(raw.tobytes()):08x}"
