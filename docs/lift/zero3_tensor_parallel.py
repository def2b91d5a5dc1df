"""ZeRO-3 × TP: `torchrun --nproc-per-node 4 --local-ranks-filter 0 docs/lift/zero3_tensor_parallel.py`"""

import torch
import torch.distributed as dist
from llama import Llama, batch
from tensor_parallel import parallelize

from minitrain.comm import axes
from minitrain.composition import clip_grad_norm
from minitrain.tensor_parallel import vocab_parallel_cross_entropy
from minitrain.zero import Zero3


def train(steps=3):
    torch.manual_seed(0)
    mesh = axes(dp=2, tp=2)
    dp, tp = (mesh[name].get_group() for name in ("dp", "tp"))
    model = Llama()
    parallelize(model, tp)
    model = Zero3(model, torch.optim.AdamW, dp, lr=0.01)
    history = []
    for step in range(steps):
        tokens, targets = (each.chunk(2)[dist.get_rank(dp)] for each in batch(step))
        loss = vocab_parallel_cross_entropy(model(tokens), targets, tp)
        loss.backward()
        model.synchronize()
        norm = clip_grad_norm(model, 1.0)
        model.step()
        model.zero_grad()
        dist.all_reduce(mean := loss.detach() / 2, group=dp)
        history.append((mean.item(), norm.item()))
    return model, history


if __name__ == "__main__":
    dist.init_process_group()
    print(*train()[1], sep="\n")
    dist.destroy_process_group()
