"""Experts: `torchrun --nproc-per-node 4 --local-ranks-filter 0 docs/lift/experts.py`"""

import torch
import torch.distributed as dist
from llama import HIDDEN, Llama, SwiGLU, batch, cross_entropy

from minitrain.composition import clip_grad_norm
from minitrain.mixture_of_experts import ExpertParallel, MoELayer, Switch, auxiliary_loss, split_data_parallel


def mixture():
    model = Llama()
    for block in model.blocks:
        block.mlp = MoELayer(Switch(HIDDEN, 8), [SwiGLU() for _ in range(8)])
    return model


def train(steps=3):
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = ExpertParallel(mixture(), split_data_parallel(ep=2))  # 4 experts on each rank; every one twice
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    history = []
    for step in range(steps):
        tokens, targets = (each.chunk(ranks)[rank] for each in batch(step))
        loss = cross_entropy(model(tokens), targets) + auxiliary_loss(model)
        loss.backward()
        model.synchronize()
        norm = clip_grad_norm(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean := loss.detach() / ranks)
        history.append((mean.item(), norm.item()))
    return model, history


if __name__ == "__main__":
    dist.init_process_group()
    print(*train()[1], sep="\n")
    dist.destroy_process_group()
