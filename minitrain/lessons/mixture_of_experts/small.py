"""The small forms of the layer and of expert parallelism, compared with one device and the full forms."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.mixture_of_experts import expert_parallel, layer, switch
from minitrain.mixture_of_experts.full.expert_parallel import ExpertParallel, split_data_parallel
from minitrain.mixture_of_experts.full.layer import MoELayer

GSHARD, DERIVED, BOUND = "Lepikhin et al. 2020, §3.3.1", "derived", 1e-12


def layer_of(full: MoELayer, capacity_factor: float = 1.25) -> layer.MoELayer:
    """A small form with copies of a full one's experts and Switch router."""
    route = partial(switch.route, capacity_factor=capacity_factor)
    router, experts = copy.deepcopy(full.router.gate), [copy.deepcopy(each) for each in full.experts.values()]
    return layer.MoELayer(router, experts, route)


def step(model: Any, x: Tensor, towards: Tensor, sequences: int, ranks: int = 1) -> list[Tensor]:
    """Output, gradient of x, and gradients of the router and of the experts that are here, in their order.

    Args:
        model: A layer on one device, or the experts' divided over ranks, in either form.
        x: This rank's sequences.
        towards: The gradient of the output, times the number of all ranks' tokens.
        sequences: Their number on all ranks.
        ranks: How many ranks average their gradients.
    """
    mixture = getattr(model, "module", model)
    x = x.clone().requires_grad_()
    y = model(x)
    part = (y * towards).sum() / (sequences * x.shape[1]) + mixture.auxiliary_loss * len(x) / sequences
    # The mean over ranks is the mean over the batch of this.
    (ranks * part).backward()
    if mixture is not model:
        model.synchronize()
    assert x.grad is not None
    return [y.detach(), x.grad / ranks, *gradients((mixture.router, *mixture.experts.children()))]


def gradients(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Of all their parameters, in their order."""
    return [p.grad for module in modules for p in module.parameters() if p.grad is not None]


def here(whole: list[Tensor], mixture: layer.MoELayer, sequences: slice, experts: range) -> list[Tensor]:
    """What a rank should find of one device's step: its sequences, and its experts."""
    y, dx, *_ = whole
    return [y[sequences], dx[sequences], *gradients((mixture.router, *(mixture.experts[e] for e in experts)))]


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest absolute difference of any element."""
    return max((one - other).abs().max().item() for one, other in zip(found, expected, strict=True))


def differing(found: list[Tensor], expected: list[Tensor]) -> int:
    """Elements that are not the same bits. The router's gradient is left out: full forms add it up in longer buckets,
    and where an element is in a buffer decides in which order an all-reduce adds."""
    pairs = zip([*found[:2], *found[3:]], [*expected[:2], *expected[3:]], strict=True)
    return sum(int((one != other).sum()) for one, other in pairs)


def claims(world: World, full: MoELayer, hidden: int, seq: int) -> list[Claim]:
    """What a step of the small form sends and holds, and that it computes what one device and the full form do.

    Each rank has one sequence. The full form's loop then multiplies the same rows in the same order.

    Args:
        world: The ranks.
        full: A full form with Switch and a number of experts that the ranks divide.
        hidden: Width of a token.
        seq: Tokens of each rank.
    """
    n, rank, experts = world.size, world.rank, len(full.experts)
    generator = torch.Generator().manual_seed(0)
    x, towards = torch.randn(2, n, seq, hidden, generator=generator, dtype=torch.float64).to(world.device)
    mine, own = slice(rank, rank + 1), range(rank * experts // n, (rank + 1) * experts // n)
    one_device = layer_of(full)
    expected = here(step(one_device, x, towards, n), one_device, mine, own)
    # What leaves this rank, and what comes to it, as one device chose.
    chosen = one_device.choose(x)[0].view(n, seq)
    leaving = int((chosen[rank] >= 0).sum())
    arriving = int(((chosen >= own.start) & (chosen < own.stop)).sum())

    model = expert_parallel.ExpertParallel(layer_of(full))
    with Ledger() as ledger:
        found = step(model, x[mine], towards[mine], n, n)
    full.compute = "loop"
    theirs = step(ExpertParallel(full, split_data_parallel(n)), x[mine], towards[mine], n, n)
    unlike = differing(found, theirs)
    payload = 8 * experts + 4 * max(leaving, arriving) * hidden * x.element_size()
    held = experts // n * costs.expert_parameters(hidden, 4 * hidden) * x.element_size()
    measured = storage_bytes(p.detach() for p in model.module.experts.parameters())
    apart, what, how = distance(found, expected), "small form: ", "compared"
    return [
        Claim(
            what + "bytes of all-to-alls in a step, those that stay among them",
            "8E + 4 · max(out, in) · h · w",
            payload,
            ledger.payload("all_to_all"),
            "B",
            GSHARD,
            key=True,
        ),
        Claim(
            what + "all-to-alls in a step", "counts, and rows 2 · 2 times", 5, ledger.calls("all_to_all"), "1", GSHARD
        ),
        Claim(what + "bytes of experts on this rank", "E/n · (2hm + m + h) · w", held, measured, "B", GSHARD),
        Claim(
            what + "distance of output and all gradients from one device",
            "10⁻¹², float64",
            BOUND,
            apart,
            "1",
            DERIVED,
            how,
            "<=",
            key=True,
        ),
        Claim(
            what + "elements of these, but the router's, that differ from the full form",
            "0",
            0,
            unlike,
            "1",
            DERIVED,
            how,
            key=True,
        ),
    ]
