"""The checks of this chapter before anything is sent: sizes must divide, and inputs must be equal.

Sizes are checked always. The check that all ranks bring the same values is optional: it reads the
tensor once and sends a few bytes next to the data, not counted by the ledger, and waits for the slowest rank.
"""

from __future__ import annotations

import zlib

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from minitrain.comm.comm import Comm
from minitrain.comm.control import differing, gather_objects


def check_split(name: str, size: int, ranks: int) -> int:
    """Each rank's part of `size`, which must divide.

    Raises:
        ValueError: It does not, or a rank would get nothing.
    """
    if size < 1 or size % ranks:
        raise ValueError(
            f"{name}={size} cannot be split over {ranks} tensor-parallel ranks; use a multiple of {ranks} for {name}"
        )
    return size // ranks


def check_same(what: str, name: str, tensor: Shaped[Tensor, "*shape"], comm: Comm) -> None:
    """If ranks compare: check that all bring the same tensor, bit by bit.

    Tensor-parallel ranks that see different tokens, weights or dropout masks compute nonsense and raise no error.

    Raises:
        ValueError: On every rank alike, with the caller `what` and the argument's `name`, and which ranks bring what.
    """
    if comm.checks and (differ := differing(gather_objects(_fingerprint(tensor), comm.group))):
        raise ValueError(
            f"{what}: `{name}` must be equal on all tensor-parallel ranks and differs: {differ}; bring the same batch, "
            "weights and dropout masks on all, or pass Comm(check=False) to compute with what is there"
        )


def check_tokens(
    what: str, name: str, tokens: Int[Tensor, "*batch"], vocabulary: int, comm: Comm, ignore_index: int | None = None
) -> None:
    """If ranks compare: check that all bring the same tokens, and none that the vocabulary lacks.

    Raises:
        ValueError: On every rank alike: they differ.
        IndexError: On every rank alike: one is outside, and is not `ignore_index`.
    """
    if not comm.checks:
        return
    check_same(what, name, tokens, comm)
    outside = (tokens < 0) | (tokens >= vocabulary)
    if ignore_index is not None:
        outside &= tokens != ignore_index
    # Tokens are equal on all ranks by now, so all of them raise.
    if outside.any():
        allowed = "" if ignore_index is None else f", or {ignore_index} to ignore one"
        raise IndexError(
            f"{what}: `{name}` has {tokens[outside][0].item()}, which vocabulary={vocabulary} does not have; "
            f"use 0 to {vocabulary - 1}{allowed}"
        )


def _fingerprint(tensor: Tensor) -> str:
    described = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    # It has no values.
    if tensor.is_meta:
        return described
    # By bits: with `==` a NaN differs from itself.
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy()
    return f"{described} with checksum {zlib.crc32(raw.tobytes()):08x}"
