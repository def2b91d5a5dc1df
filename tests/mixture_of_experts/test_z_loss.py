"""The router z-loss of logits whose exponentials are too large for float32; the lesson has the rest."""

from __future__ import annotations

import torch

from minitrain.mixture_of_experts.z_loss import z_loss


def test_large_logits_in_float32():
    assert z_loss(torch.tensor([[200.0, 0.0]]), 1.0).item() == 200.0**2
