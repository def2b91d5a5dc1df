"""Expert parallelism: each rank holds some of the experts, and tokens travel to them and back.

**Idea.** A token needs few of the many experts. Every rank routes its own tokens, sends each to the rank that holds its
expert, and gets the result back. The router is on every rank.

**Source.** Lepikhin et al. 2020, "GShard", §3; `expert_model_parallel_size` in Megatron-LM.
**Sent.** Forward: how many rows come, an all-to-all of one number per expert; the rows, there and back, an all-to-all
each. Backward: their gradients take the same two ways the other way round.
**Cost.** A rank holds 1/n of the experts. A row whose expert is on another rank is sent four times in each step.
The full form, `minitrain.mixture_of_experts.full.expert_parallel`, adds replicas of experts (ep < n), any number of
experts, ranks without tokens, whole models, buckets of gradients, and errors that all ranks hear of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group, all_reduce, all_to_all, place

if TYPE_CHECKING:
    from minitrain.mixture_of_experts.layer import MoELayer


class AllToAll(torch.autograd.Function):
    """Rows change ranks; backward, each row's gradient goes back to where the row came from."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, leaving: list[int], arriving: list[int], group: Group) -> Any:
        ctx.back = arriving, leaving, group
        # The next leaving[r] rows go to rank r, and arriving[r] come from it.
        return all_to_all(rows, leaving, arriving, group).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        # The same, with both lists exchanged.
        return all_to_all(gradients[0], *ctx.back).wait(), None, None, None


class ExpertParallel(nn.Module):
    """A mixture whose experts are divided over ranks: backward as ever, then `synchronize()`.

    Args:
        module: The small form's `MoELayer`, the same on all ranks. It keeps this rank's experts only.
        group: The ranks that share the batch and the experts; None means everyone.
    """

    def __init__(self, module: MoELayer, group: Group = None):
        super().__init__()
        self.module, self.group = module, group
        rank, self.ranks = place(group)
        assert len(module.experts) % self.ranks == 0, "each rank holds as many experts"
        self.local = len(module.experts) // self.ranks
        module.experts = module.experts[rank * self.local : (rank + 1) * self.local]

    def forward(self, x: Tensor) -> Tensor:  # [sequences, seq, hidden], this rank's
        ranks, local, tokens = self.ranks, self.local, x.flatten(0, 1)
        experts, gates = self.module.choose(x)  # [tokens, choices]
        # A row for each choice that was not dropped, sorted by expert and so by rank.
        token, choice = (experts >= 0).nonzero(as_tuple=True)  # [rows]
        order = experts[token, choice].argsort(stable=True)
        token, choice = token[order], choice[order]
        counts = experts[token, choice].bincount(minlength=ranks * local)
        # Each rank learns how many rows come from each rank for each of its experts.
        each = [local] * ranks
        coming = AllToAll.apply(counts, each, each, self.group).view(ranks, local)
        leaving = counts.view(ranks, local).sum(1).tolist()
        arriving = coming.sum(1).tolist()
        # Each row to the rank of its expert.
        rows = AllToAll.apply(tokens[token], leaving, arriving, self.group)

        # Rows arrive by sender, so each expert's are not side by side: number them.
        number = torch.arange(local, device=x.device).repeat(ranks)
        number = number.repeat_interleave(coming.flatten())  # [rows that came]
        output = torch.zeros_like(rows)
        for index, expert in enumerate(self.module.experts):
            output[number == index] = expert(rows[None, number == index])[0]

        # Each result back to its token's rank, in the order in which rows left.
        output = AllToAll.apply(output, arriving, leaving, self.group)
        # Adding by token also undoes the sorting.
        weighted = gates[token, choice, None] * output
        return torch.zeros_like(tokens).index_add(0, token, weighted).view_as(x)

    @torch.no_grad()
    def synchronize(self) -> None:
        """After the last backward of a step: gradients are those of the mean of all ranks' losses."""
        for name, parameter in self.module.named_parameters():
            assert parameter.grad is not None
            # By n for experts, too: their gradient is a sum over all ranks' tokens.
            parameter.grad.mul_(1 / self.ranks)
            if not name.startswith("experts."):
                # The router saw this rank's tokens only.
                all_reduce(parameter.grad, self.group).wait()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
