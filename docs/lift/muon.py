"""Muon on shards of ZeRO-2: `torchrun --nproc-per-node 4 --local-ranks-filter 0 docs/lift/muon.py`"""

import torch
import torch.distributed as dist
from llama import Llama, batch, cross_entropy

from minitrain.composition import clip_grad_norm
from minitrain.optimizers import Muon
from minitrain.zero import Zero2


def groups(model):
    matrices = [parameter for parameter in model.blocks.parameters() if parameter.dim() == 2]
    others = [model.embedding.weight, *(each for each in model.parameters() if each.dim() == 1)]
    return [{"params": matrices}, {"params": others, "use_muon": False, "lr": 0.01}]


def train(steps=3):
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Llama()
    model = Zero2(model, Muon, parameter_groups=groups(model), lr=0.02)
    history = []
    for step in range(steps):
        tokens, targets = (each.chunk(ranks)[rank] for each in batch(step))
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        model.synchronize()
        norm = clip_grad_norm(model, 1.0)
        model.step()
        model.zero_grad()
        dist.all_reduce(mean := loss.detach() / ranks)
        history.append((mean.item(), norm.item()))
    return model, history


if __name__ == "__main__":
    dist.init_process_group()
    print(*train()[1], sep="\n")
    dist.destroy_process_group()
