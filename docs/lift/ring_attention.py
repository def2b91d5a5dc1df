"""Ring attention, zigzag: `torchrun --nproc-per-node 4 --local-ranks-filter 0 docs/lift/ring_attention.py`"""

import torch
import torch.distributed as dist
from llama import SEQ, Llama, batch, cross_entropy

from minitrain.composition import clip_grad_norm
from minitrain.context_parallel import ContextAttention, held, take
from minitrain.data_parallel import DataParallel


def train(steps=3):
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Llama()
    for block in model.blocks:
        block.attention.core = ContextAttention(None, "zigzag", SEQ)
        block.attention.positions = held("zigzag", SEQ, rank, ranks)
    model = DataParallel(model)  # the ranks have the same weights and different tokens
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    history = []
    for step in range(steps):
        tokens, targets = take(*batch(step), "zigzag")
        loss = cross_entropy(model(tokens), targets)
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
