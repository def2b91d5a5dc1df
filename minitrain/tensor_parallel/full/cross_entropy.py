"""The full form of `minitrain.tensor_parallel.cross_entropy`, with ignored targets, low precision, and checks.

Cross-entropy over a vocabulary that is cut over ranks: three numbers of each token instead of its logits.

**Idea.** The loss of a token is log Σ exp(xᵢ − m) − (z − m): x its logits, m the largest, z its target's. A maximum of
maxima is the maximum, and a sum of exponentials goes from one maximum to another by a factor. So every rank looks
through its own logits once, and says three numbers: their maximum, their sum, and the target's logit if it has it.

**Source.** Shoeybi et al. 2019, "Megatron-LM", §3 (the loss); Milakov & Gimelshein 2018, "Online normalizer calculation
for softmax", §3.1 (merging maxima and sums).

**What each rank holds.** Its columns of the logits, `[batch, seq, vocabulary/tp]`, from forward to backward; and of
each token the merged maximum and sum.

**What is sent, when and why.** Forward: one all-gather of (mᵣ, sᵣ, zᵣ) for each token, with mᵣ the largest of rank r's
logits, sᵣ = Σ exp(x − mᵣ), and zᵣ the target's logit, or −∞ where another rank has it. Every rank then works out
m = max mᵣ, s = Σ sᵣ exp(mᵣ − m), z = max zᵣ, in the same order, so that all have the same bits. Backward: nothing, for
softmax − onehot of a rank's own logits needs only m, s and the target.

Two numbers, log Σ exp(x) and z, would be enough for small logits. **Of large ones their difference has lost its
digits**: near 10⁴ float32 numbers are 0.001 apart, and the loss is often smaller.

**Cost.** `minitrain.costs.vocabulary.loss_traffic`, (n−1)·12 bytes a token, where gathered logits would send
`gathered_logits_traffic`, (n−1)/n · 4V'. In memory nothing but the logits and the three numbers.

**Also called.** `vocab_parallel_cross_entropy` (Megatron-LM, which all-reduces the three numbers one after another:
fewer bytes from three ranks on, six times as many messages); `loss_parallel` (PyTorch, DTensor).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from minitrain.collectives.full import native
from minitrain.comm.control import checking
from minitrain.tensor_parallel.full.checks import check_same, place
from minitrain.tensor_parallel.full.mappings import Collectives
from minitrain.tensor_parallel.full.parameter_layout import ParallelLayer


def vocab_parallel_cross_entropy(
    logits: Float[Tensor, "*batch columns"],
    targets: Int[Tensor, "*batch"],
    group: dist.ProcessGroup | None = None,
    ignore_index: int = -100,
    *,
    vocabulary: int | None = None,
    collectives: Collectives = native,
    check: bool | None = None,
) -> Float[Tensor, ""]:
    """`F.cross_entropy` of logits whose columns are cut over ranks; the mean over targets that are not ignored.

    Args:
        logits: This rank's, −∞ where it has padding (as `VocabParallelHead` gives them). Computed with in float32 at
            least; autograd keeps them as they are.
        targets: Tokens of the whole vocabulary, the same on all ranks.
        group: The ranks that share the vocabulary; None means everyone.
        ignore_index: Targets of this value take no part. If all have it, the mean is not a number.
        vocabulary: V, with which targets are compared; None: all columns of all ranks.
        collectives: Who carries the three numbers.
        check: Compare targets across ranks and with the vocabulary first. None: in demos and notebooks only; on a GPU
            it waits for all that the GPU was given.

    Returns:
        The mean in nats, to the same bits on all ranks.

    Raises:
        ValueError: On every rank alike: shapes do not fit; with checking, ranks bring different targets or shapes.
        IndexError: With checking, on every rank alike: a target is outside the vocabulary. Unchecked the loss is ∞.
    """
    ranks = place(group)[1]
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit logits of shape {tuple(logits.shape)}; "
            f"use {tuple(logits.shape[:-1])}, a target for each row of logits"
        )
    if vocabulary is None:
        vocabulary = ranks * logits.shape[-1]
    check_tokens("vocab_parallel_cross_entropy", "targets", targets, vocabulary, group, check, ignore_index)
    return _CrossEntropy.apply(logits, targets, group, ignore_index, collectives, check)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        group: dist.ProcessGroup | None,
        ignore_index: int,
        collectives: Collectives,
        check: bool | None,
    ) -> Tensor:
        x = logits.to(torch.promote_types(logits.dtype, torch.float32))
        (rank, ranks), columns = place(group), x.shape[-1]
        places = targets.long() - rank * columns
        counted = targets != ignore_index
        here = (places >= 0) & (places < columns) & counted
        places = places.clamp(0, columns - 1).unsqueeze(-1)

        largest = x.amax(-1)  # [batch, seq]
        shift = largest.masked_fill(largest.isneginf(), 0)  # where all is padding: −∞ − −∞ is not a number
        total = (x - shift.unsqueeze(-1)).exp_().sum(-1)
        logit = x.gather(-1, places).squeeze(-1).masked_fill(~here, -torch.inf)
        parts = x.new_empty(ranks, 3, *targets.shape)
        parts[rank] = torch.stack([largest, total, logit])
        # Three numbers of each token from every rank to every other, all there is to send.
        collectives.all_gather(parts, group, check=check).wait()
        largests, totals, logits_of_targets = parts.unbind(1)  # each [rank, batch, seq]

        m = largests.amax(0)
        s = (totals * (largests - m).exp()).sum(0)
        z = logits_of_targets.amax(0)  # exact: the other ranks brought −∞
        losses = (s.log() - (z - m)).masked_fill(~counted, 0)
        count = counted.sum()
        ctx.save_for_backward(logits, m, s, places, here, counted, count)
        return losses.sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        logits, m, s, places, here, counted, count = ctx.saved_tensors
        # (softmax − onehot) / count, of this rank's columns; nothing is sent.
        x = logits.to(m.dtype)
        result = (x - m.unsqueeze(-1)).exp_().div_(s.unsqueeze(-1))
        result.scatter_add_(-1, places, -here.to(m.dtype).unsqueeze(-1))
        scale = (gradients[0] / count).expand_as(m).masked_fill(~counted, 0)  # count 0 gives no ∞ · 0
        return result.mul_(scale.unsqueeze(-1)).to(logits.dtype), None, None, None, None, None


class VocabParallelLoss(ParallelLayer):
    """`vocab_parallel_cross_entropy` in place of the reference's `NextTokenLoss`; arguments as there."""

    def __init__(
        self,
        vocabulary: int,
        group: dist.ProcessGroup | None = None,
        ignore_index: int = -100,
        *,
        collectives: Collectives = native,
        check: bool | None = None,
    ):
        super().__init__(group, collectives, check)
        self.vocabulary, self.ignore_index = vocabulary, ignore_index

    def forward(self, logits: Float[Tensor, "*batch columns"], targets: Int[Tensor, "*batch"]) -> Float[Tensor, ""]:
        return vocab_parallel_cross_entropy(
            logits,
            targets,
            self.group,
            self.ignore_index,
            vocabulary=self.vocabulary,
            collectives=self.collectives,
            check=self.check,
        )


def check_tokens(
    what: str,
    name: str,
    tokens: Int[Tensor, "*batch"],
    vocabulary: int,
    group: dist.ProcessGroup | None,
    check: bool | None,
    ignore_index: int | None = None,
) -> None:
    """Check that all ranks bring the same tokens, and none that the vocabulary lacks, before anything is sent.

    Raises:
        ValueError: On every rank alike: they differ.
        IndexError: On every rank alike: one is outside, and is not `ignore_index`.
    """
    if not checking(check):
        return
    check_same(what, name, tokens, group, True)
    outside = (tokens < 0) | (tokens >= vocabulary)
    if ignore_index is not None:
        outside &= tokens != ignore_index
    if outside.any():
        allowed = "" if ignore_index is None else f", or {ignore_index} to ignore one"
        raise IndexError(
            f"{what}: `{name}` has {tokens[outside][0].item()}, which vocabulary={vocabulary} does not have; "
            f"use 0 to {vocabulary - 1}{allowed}"
        )
