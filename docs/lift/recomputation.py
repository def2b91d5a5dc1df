"""Recomputation of every block: `python docs/lift/recomputation.py`"""

import torch
from llama import Llama, batch, cross_entropy
from torch import nn

from minitrain.recomputation import recompute


def train(steps=3):
    torch.manual_seed(0)
    model = Llama()
    recompute(model.blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    history = []
    for step in range(steps):
        tokens, targets = batch(step)
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        history.append((loss.item(), norm.item()))
    return model, history


if __name__ == "__main__":
    print(*train()[1], sep="\n")
