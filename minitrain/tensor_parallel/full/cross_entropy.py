"""The full form of `minitrain.tensor_parallel.cross_entropy` adds ignored targets, low precision, and checks.

**Cost.** `minitrain.costs.vocabulary.loss_traffic`, (n−1)·12 bytes per token, where gathered logits would send
`gathered_logits_traffic`, (n−1)/n · 4V'. Megatron-LM's `vocab_parallel_cross_entropy` all-reduces the three numbers one
after another, which sends fewer bytes from three ranks on, in six times as many messages.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from minitrain.comm.comm import AnyComm, Comm, as_comm
from minitrain.tensor_parallel.full.checks import check_tokens


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, comm: Comm, ignore_index: int) -> tuple[Tensor, Tensor]:
        # A sum of exponentials over a vocabulary needs more than 8 bits.
        x = logits.to(torch.promote_types(logits.dtype, torch.float32))
        rank, ranks, columns = comm.rank, comm.ranks, x.shape[-1]
        places = targets.long() - rank * columns
        counted = targets != ignore_index
        here = (places >= 0) & (places < columns) & counted
        places = places.clamp(0, columns - 1).unsqueeze(-1)

        # 1. This rank's three numbers of each token: its columns' maximum, their sum, and the target's logit or −∞.
        largest = x.amax(-1)  # [batch, seq]
        shift = largest.masked_fill(largest.isneginf(), 0)  # where all is padding: −∞ − −∞ is not a number
        total = (x - shift.unsqueeze(-1)).exp_().sum(-1)
        logit = x.gather(-1, places).squeeze(-1).masked_fill(~here, -torch.inf)
        # 2. From every rank to every other: these three numbers, and nothing else. Two, log Σ exp(x) and z, would be
        # enough for small logits; of large ones their difference has lost its digits (near 10⁴ float32 numbers are
        # 0.001 apart, and the loss is often smaller).
        parts = x.new_empty(ranks, 3, *targets.shape)
        parts[rank] = torch.stack([largest, total, logit])
        comm.all_gather(parts).wait()
        largests, totals, logits_of_targets = parts.unbind(1)  # each [rank, batch, seq]
        # 3. Merge: every sum goes to the common maximum. All ranks do it in the same order, and have the same bits.
        m = largests.amax(0)
        s = (totals * (largests - m).exp()).sum(0)
        z = logits_of_targets.amax(0)  # exact: the other ranks brought −∞
        losses = (s.log() - (z - m)).masked_fill(~counted, 0)
        count = counted.sum()
        ctx.save_for_backward(logits, m, s, places, here, counted, count)
        ctx.mark_non_differentiable(losses)
        return losses.sum() / count, losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        logits, m, s, places, here, counted, count = ctx.saved_tensors
        # (softmax − onehot) / count, of this rank's columns; nothing is sent.
        x = logits.to(m.dtype)
        result = (x - m.unsqueeze(-1)).exp_().div_(s.unsqueeze(-1))
        result.scatter_add_(-1, places, -here.to(m.dtype).unsqueeze(-1))
        scale = (gradients[0] / count).expand_as(m).masked_fill(~counted, 0)  # count 0 gives no ∞ · 0
        return result.mul_(scale.unsqueeze(-1)).to(logits.dtype), None, None, None


def vocab_parallel_cross_entropy(
    logits: Float[Tensor, "*batch columns"],
    targets: Int[Tensor, "*batch"],
    comm: AnyComm = None,
    ignore_index: int = -100,
    *,
    vocabulary: int | None = None,
    kept: list[Tensor] | None = None,
) -> Float[Tensor, ""]:
    """`F.cross_entropy` of logits whose columns are cut over ranks; the mean over targets that are not ignored.

    Args:
        logits: This rank's, −∞ where it has padding (as `VocabParallelHead` gives them). Computed with in float32 at
            least; autograd keeps them as they are.
        targets: Tokens of the whole vocabulary, the same on all ranks.
        comm: The ranks that share the vocabulary, as of `minitrain.comm.comm.Comm`; None means everyone. Checking
            compares targets across ranks and with the vocabulary; a GPU must then finish its queued work.
        ignore_index: Targets of this value take no part. If all have it, the mean is not a number.
        vocabulary: V, with which targets are compared; None: all columns of all ranks.
        kept: A list to which the losses of single tokens are added, in the shape of `targets`.

    Returns:
        The mean in nats, to the same bits on all ranks.

    Raises:
        ValueError: On every rank alike: shapes do not fit; with checking, ranks bring different targets or shapes.
        IndexError: With checking, on every rank alike: a target is outside the vocabulary. Unchecked the loss is ∞.

    Examples:
        >>> from minitrain.tensor_parallel import vocab_parallel_cross_entropy
        >>> logits = torch.randn(2, 8, 64)  # this rank's quarter of 256 tokens
        >>> loss = vocab_parallel_cross_entropy(logits, torch.arange(16).view(2, 8))
    """
    comm = as_comm(comm)
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit logits of shape {tuple(logits.shape)}; "
            f"use {tuple(logits.shape[:-1])}, a target for each row of logits"
        )
    if vocabulary is None:
        vocabulary = comm.ranks * logits.shape[-1]
    check_tokens("vocab_parallel_cross_entropy", "targets", targets, vocabulary, comm, ignore_index)
    mean, losses = _CrossEntropy.apply(logits, targets, comm, ignore_index)
    if kept is not None:
        kept.append(losses)
    return mean
