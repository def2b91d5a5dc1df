"""Four axes: `torchrun --nproc-per-node 16 --local-ranks-filter 15 docs/lift/all_of_it.py`; 8 ranks leave out dp."""

from functools import partial

import torch
import torch.distributed as dist
from llama import SEQ, Llama, batch
from tensor_parallel import parallelize
from torch import nn

from minitrain.comm import axes
from minitrain.composition import clip_grad_norm
from minitrain.context_parallel import ContextAttention, held, take
from minitrain.pipeline_parallel import SCHEDULES, Pipeline, split, ties
from minitrain.recomputation import recompute
from minitrain.tensor_parallel import vocab_parallel_cross_entropy
from minitrain.zero import Zero1


def train(steps=3):
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    mesh = axes(pp=2, dp=ranks // 8, cp=2, tp=2)
    pp, dp, cp, tp = (mesh[name].get_group() for name in ("pp", "dp", "cp", "tp"))
    data = axes(pp=2, data=ranks // 4, tp=2)["data"].get_group()  # dp and cp: the same weights, other tokens
    stage = dist.get_rank(pp)
    model = Llama()
    parallelize(model, tp)
    for block in model.blocks:
        block.attention.core = ContextAttention(cp, "zigzag", SEQ)
        block.attention.positions = held("zigzag", SEQ, dist.get_rank(cp), 2)
    recompute(model.blocks)
    layers = nn.Sequential(model.embedding, *model.blocks, model.norm, model.head)
    stages = split(layers, [3, 4])
    shared = ties(stages)
    optimizer = Zero1(stages[stage], torch.optim.AdamW, data, lr=0.01)
    loss_of = partial(vocab_parallel_cross_entropy, comm=tp)
    model = Pipeline([optimizer], SCHEDULES["1f1b"](2, 4), loss_of, pp, shared)
    history = []
    for step in range(steps):
        tokens, targets = (each.chunk(ranks // 8)[dist.get_rank(dp)] for each in batch(step))
        tokens, targets = take(tokens, targets, "zigzag", cp)
        loss = model.step(tokens.chunk(4), targets.chunk(4))
        norm = clip_grad_norm(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if loss is not None:
            dist.all_reduce(loss, group=data)
        history.append((None if loss is None else loss.item() / (ranks // 4), norm.item()))
    return model, history


if __name__ == "__main__":
    dist.init_process_group()
    print(*train()[1], sep="\n")
    dist.destroy_process_group()
