"""What a rank takes of a batch, and the loss over the tokens of all ranks.

Targets are shifted **before** the sequence is cut. So the target of a chunk's last token is the next chunk's first
token, which another rank holds. A rank that shifts its own tokens has no target there, or a wrong one.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minitrain.comm.comm import AnyComm, Comm, as_comm
from minitrain.comm.control import differing, gather_objects
from minitrain.context_parallel.full.places import held
from minitrain.models.gpt import IGNORE


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


class SequenceLoss(nn.Module):
    """The mean loss over the tokens of all ranks that are not `IGNORE`, for `gpt.loss`; equal on all ranks.

    Ranks may hold different numbers of targets, since chunks may differ and some targets are ignored; so means of ranks
    are not averaged, but sums and counts are added up. Backward gives each rank its own tokens' part of the gradient:
    **sum** the gradients of weights over the ranks, do not average them.

    Args:
        loss: The mean over this rank's targets, such as `NextTokenLoss`.
        comm: The ranks that share each sequence, as of `minitrain.comm.comm.Comm`; None means everyone.
        ignore: Targets of this value take no part.
    """

    def __init__(self, loss: nn.Module, comm: AnyComm = None, ignore: int = IGNORE):
        super().__init__()
        self.loss, self.comm, self.ignore = loss, as_comm(comm), ignore

    def forward(
        self, logits: Float[Tensor, "batch held vocabulary"], targets: Int[Tensor, "batch held"]
    ) -> Float[Tensor, ""]:
        count = (targets != self.ignore).sum()
        # Without any target the mean is not a number; a made-up target keeps it finite, and counts 0 times.
        mean = self.loss(logits, torch.where(count > 0, targets, 0))
        return _Mean.apply(mean, count, self.comm)


class _Mean(torch.autograd.Function):
    """Means of ranks, weighted by their counts."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, count: Tensor, comm: Comm) -> Tensor:
        # In float64, because float32 cannot count beyond 2²⁴ one by one.
        both = torch.stack([mean.double() * count, count.double()])
        # One message of two numbers: the sums of losses and of counts over all ranks.
        comm.all_reduce(both).wait()
        total, counts = both
        # This rank's share of all tokens. Gradients are then summed over ranks, so nothing else is divided.
        ctx.save_for_backward(count / counts)
        return (total / counts).to(mean.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[bad-override]
        (share,) = ctx.saved_tensors
        return gradient * share.to(gradient.dtype), None, None
