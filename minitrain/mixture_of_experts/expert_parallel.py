"""Expert parallelism: each rank holds some of the experts, and tokens travel to their experts and back.

**Idea.** A token needs only a few of the many experts. Every rank routes its own tokens, sends each token to the ranks
that hold its experts, and gets the results back. Every rank holds the router.

**Source.** Lepikhin et al. 2020, "GShard", §3; `expert_model_parallel_size` in Megatron-LM.
**Sent.** Forward: three all-to-alls, of the counts (one number per expert), of the rows to their experts, and of the
results back. Backward: two, of the gradients of the results and of the rows, each the opposite way.
**Cost.** A rank holds 1/n of the experts. A row whose expert is on another rank is sent four times per step.
The full form, `minitrain.mixture_of_experts.full.expert_parallel`, adds replicas of experts (ep < n), any number of
experts, ranks without tokens, whole models, gradients in buckets, and errors that are raised on all ranks.
Dispatch and combine are also called permute and unpermute (Megatron-LM).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group, all_reduce, all_to_all, rank_and_size

if TYPE_CHECKING:
    from minitrain.mixture_of_experts.layer import MoELayer


class AllToAll(torch.autograd.Function):
    """Each row goes to another rank; in backward, the row's gradient returns to the rank from which the row came."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, leaving: list[int], arriving: list[int], group: Group) -> Any:
        ctx.back = arriving, leaving, group
        # The next leaving[r] rows go to rank r, and arriving[r] rows come from it.
        return all_to_all(rows, leaving, arriving, group).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        # The same with both lists exchanged: what arrived in forward now leaves.
        return all_to_all(gradients[0], *ctx.back).wait(), None, None, None


class ExpertParallel(nn.Module):
    """A `MoELayer` whose experts are divided over ranks: backward as usual, then `synchronize()`.

    Args:
        module: The small form's `MoELayer`, the same on all ranks. Of its experts, it keeps only this rank's.
        group: The ranks that share the batch and the experts; None means everyone.
    """

    def __init__(self, module: MoELayer, group: Group = None):
        super().__init__()
        self.module, self.group = module, group
        rank, self.ranks = rank_and_size(group)
        assert len(module.experts) % self.ranks == 0, "each rank holds as many experts"
        assert all(p.requires_grad for p in module.parameters()), "a parameter is frozen: use the full form"
        assert not list(module.buffers()), "each rank would change its buffers by itself: use the full form"
        own = sum(len(list(part.parameters())) for part in (module.router, *module.experts))
        # Ranks would train copies of a shared parameter.
        assert len(list(module.parameters())) == own, "experts share a parameter: use the full form"
        self.local = len(module.experts) // self.ranks  # experts of a rank
        module.experts = module.experts[rank * self.local : (rank + 1) * self.local]

    def forward(self, x: Tensor) -> Tensor:  # [sequences, seq, hidden], this rank's sequences
        ranks, local, tokens = self.ranks, self.local, x.flatten(0, 1)  # tokens: [tokens, hidden]
        chosen, gates = self.module.choose(x)  # [tokens, choices] each
        # A row for each choice that was not dropped. Sorted by expert, rows are sorted by
        # rank as well, because rank 0 holds the first experts, rank 1 the next ones.
        token, choice = (chosen >= 0).nonzero(as_tuple=True)  # [rows] each
        order = chosen[token, choice].argsort(stable=True)
        token, choice = token[order], choice[order]

        # A receiver needs a buffer before rows come, so first every rank tells every
        # rank how many rows it has for each of that rank's experts.
        counts = chosen[token, choice].bincount(minlength=ranks * local)  # [experts]
        even = [local] * ranks
        coming = AllToAll.apply(counts, even, even, self.group).view(ranks, local)  # from each rank, for each expert
        # `all_to_all` takes lists of Python's numbers; here the CPU waits for a GPU.
        leaving = counts.view(ranks, local).sum(1).tolist()
        arriving = coming.sum(1).tolist()
        # Dispatch: each row travels to the rank of its expert.
        rows = AllToAll.apply(tokens[token], leaving, arriving, self.group)  # [arrived, hidden]

        # Rows arrived sorted by sender and then by expert, so an expert's rows are not side
        # by side: which of this rank's experts is each row for?
        local_expert = torch.arange(local, device=x.device).repeat(ranks)  # [ranks · local]
        local_expert = local_expert.repeat_interleave(coming.flatten())  # [arrived]
        output = torch.zeros_like(rows)
        for index, expert in enumerate(self.module.experts):
            mine = local_expert == index  # [arrived]
            output[mine] = expert(rows[mine][None])[0]

        # Each result travels back to its token's rank; they arrive in the order in which rows left.
        output = AllToAll.apply(output, arriving, leaving, self.group)  # [rows, hidden]
        # Combine: add each result to its token, wherever sorting had put the row.
        weighted = gates[token, choice, None] * output
        return torch.zeros_like(tokens).index_add(0, token, weighted).view_as(x)

    @torch.no_grad()
    def synchronize(self) -> None:
        """After the last backward of a step: make gradients those of the mean of all ranks' losses."""
        for name, parameter in self.module.named_parameters():
            assert parameter.grad is not None, "synchronize() comes after backward"
            # 1/n for experts, too: tokens of all ranks came here, so an expert's gradient is
            # already the sum over ranks.
            parameter.grad.mul_(1 / self.ranks)
            if not name.startswith("experts."):
                # The router saw only this rank's tokens: its gradient has to be added up.
                all_reduce(parameter.grad, self.group).wait()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
