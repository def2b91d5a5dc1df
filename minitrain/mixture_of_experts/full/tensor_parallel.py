"""Experts cut by tensor parallelism: each rank has some of the hidden units of every expert.

**Idea.** An expert is a feed-forward layer, so chapter 08 cuts its first matrix by columns and its second by rows. Each
rank's output is then a partial sum. Experts are many, but a sum of sums can wait: rows are weighted by their gates and
added up for each token first, and one all-reduce of the tokens completes all experts at once. The router is whole on
every rank and makes the same choices there.

**Source.** Shoeybi et al. 2019, "Megatron-LM", §3, for the cut; Singh et al. 2023, "A hybrid tensor-expert-data
parallelism approach to optimize mixture-of-experts training", §4, for both at once.
**Sent.** For each layer forward an all-reduce of the tokens, [tokens, hidden]; backward one of their gradients, and a
small one of the gradients of gates, of which each rank has only the part of its hidden units. With sequence parallelism
an all-gather and a reduce-scatter of the tokens each way.
**Cost.** Of each expert 1/t of both matrices and of the first bias, and all of the second one.
Also called expert tensor parallelism, `--expert-tensor-parallel-size` (Megatron-LM).
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from minitrain.comm.comm import Comm
from minitrain.mixture_of_experts.full.layer import MoELayer
from minitrain.models import gpt
from minitrain.tensor_parallel.full.checks import check_split
from minitrain.tensor_parallel.full.linear import ColumnParallelLinear, RowParallelLinear


class PartialMLP(gpt.MLP):
    """Some of the hidden units of an expert: the sum of the ranks' outputs is the expert's."""

    def __init__(self, mlp: gpt.MLP, comm: Comm):
        # Not MLP's own, which would make both matrices in full.
        nn.Module.__init__(self)
        check_split("4·hidden", mlp.up.out_features, comm.ranks)
        # They hold the pieces, and know how they are cut. Their own messages are not needed here.
        self.up = ColumnParallelLinear.from_linear(mlp.up, comm)  # type: ignore[bad-assignment]
        self.down = RowParallelLinear.from_linear(mlp.down, comm)  # type: ignore[bad-assignment]
        # In the sum the last bias has to be once, but every rank holds it, and needs the whole gradient of it.
        self.adds_bias = self.down.rank == 0
        self.gate: nn.Linear | None = None
        self.train(mlp.training)

    def forward(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        """This rank's partial sum; x is the same on all ranks."""
        wide = F.gelu(F.linear(x, self.up.weight, self.up.bias), approximate="tanh")  # [rows, 4·hidden/t]
        bias = self.down.bias if self.adds_bias else self.down.bias - self.down.bias.detach()
        return F.linear(wide, self.down.weight, bias)


def cut(layer: MoELayer, comm: Comm, sequence: bool = False) -> None:
    """Change a mixture, in place, so that each rank holds and computes its part of every expert. No tensor is sent.

    Args:
        layer: The same on all ranks, which afterwards give it the same tokens. Its experts are `gpt.MLP`s.
        comm: The tensor-parallel ranks.
        sequence: They divide each sequence outside of the layer (sequence parallelism). It gathers the tokens, so that
            choices and slots are those of whole sequences, and scatters the sums.

    Raises:
        ValueError: Before anything is changed: an expert is of another class, or its hidden units do not divide by the
            ranks.
    """
    whole = {number: expert for number, expert in layer.experts.items() if type(expert) is gpt.MLP}
    if others := sorted({type(layer.experts[number]).__name__ for number in layer.experts.keys() - whole.keys()}):
        raise ValueError(f"experts of class {', '.join(others)} cannot be cut by tensor parallelism; use gpt.MLP")
    # All are made before one is exchanged, so that a refusal leaves the layer as it was.
    made = {number: PartialMLP(expert, comm) for number, expert in whole.items()}
    layer.experts.update(made)
    layer.tensor, layer.sequence = comm, sequence
    layer.prepare()
