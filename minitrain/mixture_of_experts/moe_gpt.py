"""A GPT with mixtures of experts: every second feed-forward layer is replaced by many.

**Idea.** Two thirds of a GPT's block are its feed-forward layer, which treats each token by itself. It can be replaced
by a mixture without any change around it. The layers between stay dense: they need no messages, and all tokens pass
through the same weights there. `expert_parallel.ExpertParallel` then spreads the experts over ranks.

**Source.** Lepikhin et al. 2020, "GShard", §2.1: every other feed-forward layer; so do Fedus et al. 2021, §4.
**Cost.** (E − 1) · `minitrain.costs.mixture_of_experts.expert_parameters` more parameters for each replaced layer, and
per token the operations of k dense layers and the router. Also called `moe_layer_freq` (Megatron-LM), `moe_freq`,
`expert_interval`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from minitrain.mixture_of_experts.full.compute import Way
from minitrain.mixture_of_experts.full.layer import MoELayer
from minitrain.mixture_of_experts.full.router import Router
from minitrain.models.gpt import GPT, MLP, initial_weight


def replace_mlps(
    gpt: GPT,
    make_router: Callable[[int], Router],
    compute: Way = "grouped",
    every: int = 2,
    seed: int = 0,
    riding_loss: float | None = None,
    first: int = 0,
    expert_hidden: int | None = None,
    shared: int = 0,
) -> list[MoELayer]:
    """Replace the feed-forward layer of every second block, in place. Lepikhin et al. 2020, §2.1.

    Each expert has the form of the layer that it replaces, and initial weights of its own, which depend on its name and
    `seed` alone. Today's models have experts in nearly every block, narrower than the MLPs of the others, and perhaps
    one that all tokens share (Dai et al. 2024, "DeepSeekMoE", §3).

    Args:
        gpt: The model, on the device and in the dtype in which it will train.
        make_router: Makes the router of a block, given its number; pass it on as `layer=`, so that each has noise of
            its own. The number of experts is the router's.
        compute: As for `MoELayer`.
        every: Blocks from one mixture to the next: 1 replaces all; 2 the second, fourth, … .
        seed: Of the initial weights; any integer.
        riding_loss: As for `MoELayer`.
        first: So many blocks at the beginning keep their layer; `every` counts those after them.
        expert_hidden: Width inside an expert; None: that of the replaced layer.
        shared: The shared expert is as wide as so many of the others; 0: there is none.

    Returns:
        The mixtures, in the model's order.

    Raises:
        ValueError: `every` and `first` leave no block to replace, or a router's width is not the model's.
    """
    config, left = gpt.config, gpt.config.layers - first
    if not 1 <= every <= left:
        raise ValueError(f"every={every} replaces none of {left} blocks; use 1 to {left}")
    hidden = expert_hidden or config.mlp_hidden or 4 * config.hidden
    mixtures = []
    for number in range(first + every - 1, config.layers, every):
        router = make_router(number)
        if router.hidden != config.hidden:
            raise ValueError(f"a router for hidden={router.hidden} does not fit the model's hidden={config.hidden}")
        router.reset_parameters(router_generator(number, seed))
        experts: list[nn.Module] = [MLP(replace(config, mlp_hidden=hidden)) for _ in range(router.experts)]
        # Several shared experts in one: their hidden units next to each other, and their sum as its output.
        common = MLP(replace(config, mlp_hidden=shared * hidden)) if shared else None
        with torch.no_grad():
            for place, expert in [*enumerate(experts), *([("shared", common)] if common else [])]:
                for name, parameter in expert.named_parameters():
                    if not parameter.is_meta:
                        parameter.copy_(expert_weight(number, place, name, parameter.shape, config.layers, seed))
        weight = gpt.head.weight
        mixture = MoELayer(router, experts, compute, riding_loss, common).to(weight.device, weight.dtype)
        gpt.blocks[number].mlp = mixture
        mixtures.append(mixture)
    return mixtures


def router_generator(block: int, seed: int) -> torch.Generator:
    """Where the router of a block draws its initial weights."""
    digest = hashlib.sha256(f"{seed}/blocks.{block}.router".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))


def expert_weight(block: int, expert: int | str, name: str, shape: Sequence[int], layers: int, seed: int) -> Tensor:
    """The initial value of one parameter of one expert, such as "up.weight"; as `models.gpt.initial_weight`.

    The expert is its number, or "shared".
    """
    # It ends as that of the layer that the expert replaces, and so gets the same deviation.
    return initial_weight(f"blocks.{block}.experts.{expert}.mlp.{name}", shape, layers, seed)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
