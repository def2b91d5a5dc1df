"""Expert dropout, with and without it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from minitrain.mixture_of_experts import MoELayer, Switch
from tests.mixture_of_experts.plain import EXPERTS


def error_on_new_samples(dropout, seed):
    """Of a layer of four experts that is fine-tuned on 64 noisy samples: its error on 2000 others, without noise."""
    torch.manual_seed(seed)
    teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    x, new = torch.randn(1, 64, 16), torch.randn(1, 2000, 16)
    with torch.no_grad():
        y, truth = 3 * teacher(x) + 0.5 * torch.randn(1, 64, 1), 3 * teacher(new)
    mlps = [
        nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Dropout(dropout), nn.Linear(128, 16)) for _ in range(EXPERTS)
    ]
    layer, head = MoELayer(Switch(16, EXPERTS, capacity_factor=None), mlps), nn.Linear(16, 1)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(200):
        optimizer.zero_grad()
        F.mse_loss(head(x + layer(x)), y).backward()
        optimizer.step()
    with torch.no_grad():
        layer.eval()
        return F.mse_loss(head(new + layer(new)), truth).item()


def test_expert_dropout_helps_a_small_task():
    """Fedus et al. 2021, §2.4: 0.4 within experts, in fine-tuning."""
    plain_error, with_dropout = ([error_on_new_samples(p, seed) for seed in range(2)] for p in (0.0, 0.4))
    assert sum(with_dropout) < 0.95 * sum(plain_error)
