"""A Llama of the reader's own: plain torch, nothing of minitrain. No lift changes a line of this file."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, HIDDEN, MLP, HEADS, KV_HEADS, LAYERS, SEQ, BATCH = 256, 64, 192, 8, 2, 4, 32, 8
HEAD = HIDDEN // HEADS


def rotated(x, positions):  # (batch, heads, seq, head)
    angles = positions[:, None] / 10_000 ** (torch.arange(0, HEAD, 2) / HEAD)  # (seq, head / 2)
    cos, sin = angles.cos().to(x.device), angles.sin().to(x.device)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.key = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.value = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.output = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.core = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
        self.positions = torch.arange(SEQ)

    def forward(self, x):  # (batch, seq, hidden)
        made = (layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        query, key, value = made  # (batch, heads, seq, head)
        y = self.core(rotated(query, self.positions), rotated(key, self.positions), value)
        return self.output(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(HIDDEN, MLP, bias=False)
        self.up = nn.Linear(HIDDEN, MLP, bias=False)
        self.down = nn.Linear(MLP, HIDDEN, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(HIDDEN), Attention()
        self.mlp_norm, self.mlp = nn.RMSNorm(HIDDEN), SwiGLU()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight  # tied
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens):  # (batch, seq)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # (batch, seq, vocabulary)


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(step):  # in place of your data: sequences that count up, and for each token the one that follows
    begin = torch.randint(VOCABULARY, (BATCH, 1), generator=torch.Generator().manual_seed(step))
    text = (begin + torch.arange(SEQ + 1)) % VOCABULARY
    return text[:, :-1], text[:, 1:]
