"""Node-limited routing chooses what DeepSeek's own code chooses; the lesson has the rest."""

from __future__ import annotations

import torch

from minitrain.mixture_of_experts import node_limited


def deepseek(x, weight, bias, n_group, topk_group, num_experts_per_tok):
    """`Gate.forward` of DeepSeek's own inference code for V3, without its factor of the gates."""
    scores = original = (x @ weight.T).sigmoid()
    scores = (scores + bias).view(x.size(0), n_group, -1)
    group_scores = scores.topk(2, dim=-1)[0].sum(dim=-1)
    indices = group_scores.topk(topk_group, dim=-1)[1]
    mask = torch.ones(x.size(0), n_group, dtype=torch.bool).scatter_(1, indices, False)
    scores = scores.masked_fill_(mask.unsqueeze(-1), float("-inf")).flatten(1)
    indices = torch.topk(scores, num_experts_per_tok, dim=-1)[1]
    weights = original.gather(1, indices)
    return indices, weights / weights.sum(dim=-1, keepdim=True)


def test_as_deepseek_has_it():
    """With the sizes of DeepSeek-V3's published configuration, and biases that change what is chosen."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(300, 16, generator=generator), torch.randn(256, 16, generator=generator) / 4
    bias = torch.randn(256, generator=generator) / 5
    expert, gates, loss = node_limited.route(x, weight, bias, 8, 8, 4)
    right, their_gates = deepseek(x, weight, bias, n_group=8, topk_group=4, num_experts_per_tok=8)
    assert torch.equal(expert, right) and loss == 0
    torch.testing.assert_close(gates, their_gates)
    assert not torch.equal(expert, node_limited.route(x, weight, bias.zero_(), 8, 8, 4)[0])
