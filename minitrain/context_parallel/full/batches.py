"""What a rank takes of a batch.

Targets are shifted **before** the sequence is cut. So the target of a chunk's last token is the next chunk's first
token, which another rank holds. A rank that shifts its own tokens has no target there, or a wrong one.

Ranks may hold different numbers of targets, since chunks may differ and some targets are ignored. So means of ranks are
not averaged: each rank divides its sum of losses by the number of targets on all ranks, and gradients of weights are
**summed** over the ranks.
"""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor

from minitrain.comm.comm import AnyComm, as_comm
from minitrain.comm.control import differing, gather_objects
from minitrain.context_parallel.full.places import held


def take(
    tokens: Int[Tensor, "batch seq"], targets: Int[Tensor, "_ _"], mode: str, comm: AnyComm = None
) -> tuple[Int[Tensor, "batch held"], Int[Tensor, "batch held"]]:
    """This rank's tokens of every sequence, and their targets.

    Args:
        tokens: The whole sequences, the same on all ranks.
        targets: The tokens that follow, already shifted, `[batch, seq]`; `IGNORE` where there is nothing to learn.
        mode: As of the attention, "ring", "zigzag", "ulysses" or "gather".
        comm: The ranks that share each sequence, as of `minitrain.comm.comm.Comm`; None means everyone.

    Raises:
        ValueError: Tokens and targets have different shapes, the mode is unknown, or the sequence is too short. Where
            ranks are checked also, on every rank alike, if shapes differ between ranks.

    Examples:
        >>> from minitrain.context_parallel import take
        >>> text = torch.arange(33)[None]  # the same on all ranks
        >>> tokens, targets = take(text[:, :-1], text[:, 1:], "zigzag")
    """
    comm = as_comm(comm)
    if tokens.shape != targets.shape:
        raise ValueError(
            f"tokens of shape {tuple(tokens.shape)} and targets of shape {tuple(targets.shape)} differ; give each "
            "token the one that follows it, and IGNORE to the last"
        )
    shape = tuple(tokens.shape)
    if comm.checks and (differ := differing(gather_objects(shape, comm.group, "take"))):
        raise ValueError(f"tokens differ in shape between ranks: {differ}; give all ranks the same whole sequences")
    mine = held(mode, shape[1], comm.rank, comm.ranks, tokens.device)
    return tokens[:, mine], targets[:, mine]
