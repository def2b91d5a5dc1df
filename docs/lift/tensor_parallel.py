"""Tensor parallelism: `torchrun --nproc-per-node 4 --local-ranks-filter 0 docs/lift/tensor_parallel.py`"""

import torch
import torch.distributed as dist
from llama import KV_HEADS, Llama, batch

from minitrain.composition import clip_grad_norm
from minitrain.tensor_parallel import ColumnParallelLinear as Column
from minitrain.tensor_parallel import RowParallelLinear as Row
from minitrain.tensor_parallel import (
    VocabParallelEmbedding,
    VocabParallelHead,
    sum_partial_gradients,
    vocab_parallel_cross_entropy,
)


def parallelize(model, comm=None):
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        attention.query = Column.from_linear(attention.query, comm)
        for name in ("key", "value"):  # 2 heads on 4 ranks: neighbors share one
            shared = Column.from_linear(getattr(attention, name), comm, shards=KV_HEADS)
            setattr(attention, name, shared)
        attention.output = Row.from_linear(attention.output, comm)
        mlp.gate, mlp.up = Column.from_linear(mlp.gate, comm), Column.from_linear(mlp.up, comm)
        mlp.down = Row.from_linear(mlp.down, comm)
    model.embedding = VocabParallelEmbedding.from_embedding(model.embedding, comm)
    model.head = VocabParallelHead.from_linear(model.head, comm, shard=model.embedding.weight)  # tied


def train(steps=3):
    torch.manual_seed(0)
    model = Llama()
    parallelize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    history = []
    for step in range(steps):
        tokens, targets = batch(step)
        loss = vocab_parallel_cross_entropy(model(tokens), targets)
        loss.backward()
        sum_partial_gradients(model)  # of the heads that neighbors share
        norm = clip_grad_norm(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        history.append((loss.item(), norm.item()))
    return model, history


if __name__ == "__main__":
    dist.init_process_group()
    print(*train()[1], sep="\n")
    dist.destroy_process_group()
