"""The full form in any layout, with any router, next to one device: for notebook 12b and the tests."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import World
from minitrain.lessons.mixture_of_experts.layer import step
from minitrain.mixture_of_experts import ExpertChoice, Switch, TopK
from minitrain.mixture_of_experts.full.expert_parallel import ExpertParallel
from minitrain.mixture_of_experts.full.layer import MoELayer

ROUTERS = {"switch": partial(Switch, jitter=0.1), "top_k": TopK, "expert_choice": ExpertChoice}
SEQUENCES = (2, 3, 0, 1)  # of ranks 0, 1, 2, …, and again from the first


def distance(world: World, layer: MoELayer, model: ExpertParallel, seq: int = 10) -> float:
    """How far a step of `model` is from one of `layer`, on one device: outputs and gradients of what this rank has."""
    counts = [SEQUENCES[rank % len(SEQUENCES)] for rank in range(world.size)]
    first, sequences, generator = sum(counts[: world.rank]), sum(counts), torch.Generator().manual_seed(0)
    x = torch.randn(sequences, seq, layer.router.hidden, generator=generator, dtype=torch.float64).to(world.device)
    mine = slice(first, first + counts[world.rank])
    layer.router.set_position(seed=0, step=1)
    y, dx, *_ = step(layer, x, sequences)
    layer.router.set_position(seed=0, step=1, first_token=first * seq)
    own_y, own_dx, *_ = step(model, x[mine], sequences, world.size)
    pairs, expected = [(own_y, y[mine]), (own_dx, dx[mine])], dict(layer.named_parameters())
    pairs += [(p.grad, expected[name].grad) for name, p in model.module.named_parameters() if p.grad is not None]
    return max((one - other).abs().max().item() for one, other in pairs if one.numel())  # type: ignore[operator]
