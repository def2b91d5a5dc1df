"""ZeRO-3 with our checkpoints: `torchrun --nproc-per-node 4 --local-ranks-filter 0 docs/lift/checkpoints.py`"""

import torch
import torch.distributed as dist
from llama import Llama, batch, cross_entropy

from minitrain.checkpointing import load, newest, save, state_of
from minitrain.composition import clip_grad_norm
from minitrain.zero import Zero3


def train(steps=3, folder="runs/lift"):
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Zero3(Llama(), torch.optim.AdamW, lr=0.01)
    first, state = 0, state_of(model)
    if (found := newest(folder)) is not None:  # of this layout or any other
        first = load(found, state)["steps"]
        model.restore()
    history = []
    for step in range(first, steps):
        tokens, targets = (each.chunk(ranks)[rank] for each in batch(step))
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        model.synchronize()
        norm = clip_grad_norm(model, 1.0)
        model.step()
        model.zero_grad()
        save(folder, step, state, {"steps": step + 1})
        dist.all_reduce(mean := loss.detach() / ranks)
        history.append((mean.item(), norm.item()))
    return model, history


if __name__ == "__main__":
    dist.init_process_group()
    print(*train()[1], sep="\n")
    dist.destroy_process_group()
