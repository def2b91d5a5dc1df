"""Cross-entropy over a vocabulary that is divided over ranks: three numbers per token are sent instead of all logits.

**Idea.** The loss of a token is log s − (z − m): m is the largest of its logits xᵢ, s = Σ exp(xᵢ − m), and z is the
target's logit. Each rank computes the three for its own logits and sends them. The merged m is the largest of all; a
rank's sum, taken with its own maximum mᵣ, becomes one with m when it is multiplied by exp(mᵣ − m).
**Source.** Shoeybi et al. 2019, "Megatron-LM", §3; Milakov & Gimelshein 2018, "Online normalizer calculation for
softmax", §3.1. PyTorch calls it `loss_parallel`.
**Sent.** Forward: one all-gather of three numbers per token and rank. Backward: nothing.
**Cost.** Each rank holds its own logits, their gradient, and a few numbers per token.
The full form, `minitrain.tensor_parallel.full.cross_entropy`, adds targets that are ignored, float32 sums of logits in
lower precision, a module for the GPT, and checks of the targets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_gather, rank_and_size


def vocab_parallel_cross_entropy(logits: Tensor, targets: Tensor, group: Group = None) -> Tensor:
    """The mean over tokens, in nats.

    Args:
        logits: This rank's columns, [..., V'/n]; −∞ in columns that are padding.
        targets: Tokens of the whole vocabulary, [...], the same on all ranks.
        group: The ranks that share the vocabulary; None means everyone.
    """
    return CrossEntropy.apply(logits, targets, group)


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group) -> Tensor:
        rank, ranks = rank_and_size(group)
        columns = logits.shape[-1]
        assert logits.dtype in (torch.float32, torch.float64), "a sum needs more digits"
        assert ((targets >= 0) & (targets < ranks * columns)).all(), "the full form has targets that are ignored"
        # 1. This rank's m, s and z. If another rank has the target, z is −∞ here.
        column = targets - rank * columns
        here = (column >= 0) & (column < columns)  # [...]
        column = column.clamp(0, columns - 1).unsqueeze(-1)  # [..., 1]
        # If all columns are padding, m must be finite nevertheless, because −∞ − (−∞) is not a number.
        m = logits.amax(-1).clamp(min=torch.finfo(logits.dtype).min)  # [...]
        s = (logits - m.unsqueeze(-1)).exp_().sum(-1)  # [...]
        z = logits.gather(-1, column).squeeze(-1).masked_fill(~here, -torch.inf)  # [...]
        # 2. Send: every rank receives these three numbers per token from all ranks.
        gathered: Any = all_gather(torch.stack([m, s, z]), group).wait()  # [3n, ...]
        all_m, all_s, all_z = gathered.unflatten(0, (ranks, 3)).unbind(1)  # each [n, ...]
        # 3. Merge to m, s and z of all columns; all ranks add in the same order, so they get the same bits.
        m = all_m.amax(0)
        s = (all_s * (all_m - m).exp()).sum(0)
        z = all_z.amax(0)
        ctx.save_for_backward(logits, m, s, column, here)
        # z − m comes first: in m + log s, a large m would swallow the digits of log s.
        return (s.log() - (z - m)).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[bad-override]
        logits, m, s, column, here = ctx.saved_tensors
        # Softmax minus one-hot. For this rank's columns m, s and the target suffice, so nothing is sent.
        grad_logits = (logits - m.unsqueeze(-1)).exp_().div_(s.unsqueeze(-1))  # [..., V'/n]
        grad_logits.scatter_add_(-1, column, -here.to(grad_logits.dtype).unsqueeze(-1))
        # The loss is a mean over m.numel() tokens.
        return grad_logits.mul_(gradient / m.numel()), None, None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
