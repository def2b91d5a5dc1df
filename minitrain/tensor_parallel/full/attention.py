"""The full form of `minitrain.tensor_parallel.attention` adds all that makes a Llama or Qwen, overlap, and checks.

**Idea.** Where there are fewer key and value heads than ranks, t ranks and k heads, t/k neighboring ranks hold the
same head, each for queries of its own. Its gradient is a sum over these ranks. A norm of queries or keys has one weight
for all heads, so its gradient is a sum over all ranks. A hidden unit of a gated MLP is on the same rank as its gate.

Open `tensor_parallel/full/linear.py` first.
**Source.** Besides Shoeybi et al. 2019: Ainslie et al. 2023, "GQA", for grouped-query attention.
**Sent.** Also the gradients of shared heads and of norms, once per step: `parameter_layout.sum_partial_gradients`.
**Cost.** `minitrain.costs.tensor_parallel`: `layer_traffic` and `layer_parameters`; a rank does 1/t of the products.
Also called head parallelism; `parallelize_module` with `ColwiseParallel` and `RowwiseParallel` (PyTorch DTensor).
"""

from __future__ import annotations

import copy

from jaxtyping import Float
from torch import Tensor, nn

from minitrain.comm.comm import AnyComm, as_comm
from minitrain.models import gpt
from minitrain.tensor_parallel.full.checks import check_split
from minitrain.tensor_parallel.full.linear import ColumnParallelLinear, RowParallelLinear
from minitrain.tensor_parallel.full.norm import PartialNorm


class ParallelAttention(gpt.Attention):
    """`gpt.Attention` with some of the heads on each rank, with weights cut from a reference's.

    Args:
        attention: The reference; it keeps its own weights.
        comm: The ranks that share the heads, as of `minitrain.comm.comm.Comm`; None means everyone.

    Raises:
        ValueError: The heads do not divide by the ranks; key and value heads neither divide by them nor divide them;
            this rank is not in the group.
    """

    query: ColumnParallelLinear  # type: ignore[bad-override]
    key: ColumnParallelLinear  # type: ignore[bad-override]
    value: ColumnParallelLinear  # type: ignore[bad-override]
    output: RowParallelLinear  # type: ignore[bad-override]

    def __init__(self, attention: gpt.Attention, comm: AnyComm = None):
        # Not the reference's own, which would make whole matrices.
        nn.Module.__init__(self)
        comm = as_comm(comm)
        ranks = comm.ranks
        heads = attention.query.out_features // attention.head_size
        kv_heads = attention.key.out_features // attention.head_size
        check_split("heads", heads, ranks)
        if kv_heads % ranks and ranks % kv_heads:
            fitting = [k for k in range(1, heads + 1) if heads % k == 0 and (k % ranks == 0 or ranks % k == 0)]
            raise ValueError(
                f"kv_heads={kv_heads} neither divides by {ranks} tensor-parallel ranks nor divides them; "
                f"use one of {fitting}"
            )
        shards = min(kv_heads, ranks)  # with fewer heads than ranks, neighboring ranks hold the same one
        self.head_size = attention.head_size
        self.query = ColumnParallelLinear.from_linear(attention.query, comm)
        self.key = ColumnParallelLinear.from_linear(attention.key, comm, shards=shards)
        self.value = ColumnParallelLinear.from_linear(attention.value, comm, shards=shards)
        # One weight for all heads, of which each rank norms its own.
        self.query_norm = PartialNorm.of(copy.deepcopy(attention.query_norm), comm)  # type: ignore[bad-assignment]
        self.key_norm = PartialNorm.of(copy.deepcopy(attention.key_norm), comm)  # type: ignore[bad-assignment]
        self.rotary = copy.deepcopy(attention.rotary)
        self.core = copy.deepcopy(attention.core)
        self.output = RowParallelLinear.from_linear(attention.output, comm)
        self.train(attention.training)

    def forward(self, x: Float[Tensor, "batch seq hidden"]) -> Float[Tensor, "batch seq hidden"]:
        # One Function for the three products: the gradient of x is added up over ranks once, not three times.
        query, key, value = self.query.together(x, self.key, self.value)  # each [batch, seq, width/t]
        return self.mix(query, key, value)


class ParallelMLP(gpt.MLP):
    """`gpt.MLP` with some of the hidden units on each rank, and with their gates. Arguments as above.

    Raises:
        ValueError: The hidden units do not divide by the ranks, or this rank is not in the group.
    """

    def __init__(self, mlp: gpt.MLP, comm: AnyComm = None):
        nn.Module.__init__(self)
        comm = as_comm(comm)
        check_split("mlp_hidden", mlp.up.out_features, comm.ranks)
        self.up = ColumnParallelLinear.from_linear(mlp.up, comm)  # type: ignore[bad-assignment]
        self.gate = None if mlp.gate is None else ColumnParallelLinear.from_linear(mlp.gate, comm)  # type: ignore
        self.gated = mlp.gated
        self.down = RowParallelLinear.from_linear(mlp.down, comm)  # type: ignore[bad-assignment]
        self.train(mlp.training)

    def forward(self, x: Float[Tensor, "batch seq hidden"]) -> Float[Tensor, "batch _ hidden"]:
        if self.gate is None:
            return super().forward(x)
        # One Function for both products, as above.
        return self.mix(*self.up.together(x, self.gate))  # type: ignore
