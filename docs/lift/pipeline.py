"""A pipeline, 1F1B: `torchrun --nproc-per-node 4 --local-ranks-filter 3 docs/lift/pipeline.py`"""

import torch
import torch.distributed as dist
from llama import Llama, batch, cross_entropy
from torch import nn

from minitrain.composition import clip_grad_norm
from minitrain.pipeline_parallel import SCHEDULES, Pipeline, split, ties


def train(steps=3):
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Llama()
    layers = nn.Sequential(model.embedding, *model.blocks, model.norm, model.head)
    stages = split(layers, [2, 1, 1, 3])
    model = Pipeline([stages[rank]], SCHEDULES["1f1b"](ranks, 8), cross_entropy, ties=ties(stages))
    optimizer = torch.optim.AdamW(stages[rank].parameters(), lr=0.01)
    history = []
    for step in range(steps):
        tokens, targets = batch(step)
        loss = model.step(tokens.chunk(8), targets.chunk(8))  # forward and backward of 8 micro-batches
        norm = clip_grad_norm(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        history.append((None if loss is None else loss.item(), norm.item()))  # only the last stage has it
    return model, history


if __name__ == "__main__":
    dist.init_process_group()
    print(*train()[1], sep="\n")
    dist.destroy_process_group()
