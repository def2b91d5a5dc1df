"""Cross-entropy over a vocabulary that is divided over ranks: three numbers per token instead of all logits.

**Idea.** The loss of a token is log Σ exp(xᵢ − m) − (z − m), where x are its logits, m is the largest of them and z is
the target's. Each rank looks through its own logits only and sends three numbers: their maximum, their sum of
exponentials, and the target's logit if it has it. A sum moves from one maximum to another by one factor.
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

from minitrain.comm.messages import Group, all_gather, place


def vocab_parallel_cross_entropy(logits: Tensor, targets: Tensor, group: Group = None) -> Tensor:
    """The mean over tokens, in nats.

    Args:
        logits: This rank's columns, −∞ where it has padding.
        targets: Tokens of the whole vocabulary, the same on all ranks.
        group: The ranks that share the vocabulary; None means everyone.
    """
    return CrossEntropy.apply(logits, targets, group)


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group) -> Tensor:
        (rank, ranks), columns = place(group), logits.shape[-1]  # logits: [..., V'/n]
        assert logits.dtype in (torch.float32, torch.float64), "a sum needs more digits"
        # 1. My own: maximum, sum of exponentials, and the target's logit, or −∞ if I lack it.
        local = targets - rank * columns
        mine = (local >= 0) & (local < columns)
        local = local.clamp(0, columns - 1).unsqueeze(-1)
        # Finite even where all is padding, because −∞ − (−∞) is not a number.
        largest = logits.amax(-1).clamp(min=torch.finfo(logits.dtype).min)  # [...]
        total = (logits - largest.unsqueeze(-1)).exp_().sum(-1)
        logit = logits.gather(-1, local).squeeze(-1).masked_fill(~mine, -torch.inf)
        # 2. Send: these three numbers per token go from every rank to every other.
        parts = all_gather(torch.stack([largest, total, logit]), group).wait()  # [3n, ...]
        assert parts is not None
        largests, totals, target_logits = parts.unflatten(0, (ranks, 3)).unbind(1)  # [n, ...]
        # 3. Merge: each sum goes to the common maximum. All ranks do it in the same order.
        m = largests.amax(0)
        s = (totals * (largests - m).exp()).sum(0)
        z = target_logits.amax(0)
        ctx.save_for_backward(logits, m, s, local, mine)
        return (s.log() - (z - m)).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[bad-override]
        logits, m, s, local, mine = ctx.saved_tensors
        # Softmax − one-hot of my own columns needs only m, s and the target: nothing is sent.
        result = (logits - m.unsqueeze(-1)).exp_().div_(s.unsqueeze(-1))  # [..., V'/n]
        result.scatter_add_(-1, local, -mine.to(result.dtype).unsqueeze(-1))
        return result.mul_(gradient / m.numel()), None, None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
