"""Experts' products grouped against a loop over experts, and experts on different ranks against all on every rank.

The first sends nothing: every rank puts its own rows through its own experts and back, and both sides write a gradient
for each parameter. In the second both sides take the same step of a mixture, up to final gradients: tokens travel to
experts, or gradients of all experts travel to all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.benchmarks.compare import Comparison, by_both_clocks, interleaved
from minitrain.comm.world import World
from minitrain.data_parallel import DataParallel
from minitrain.mixture_of_experts.full.compute import WAYS, Way, lay_side_by_side
from minitrain.mixture_of_experts.full.expert_parallel import ExpertParallel, split_data_parallel
from minitrain.mixture_of_experts.full.layer import MoELayer
from minitrain.mixture_of_experts.full.switch import Switch
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import MLP

# Width of a token, and tokens of a rank. Small on CPUs: with many rows for each expert, products take all the time.
CPU, GPU = (32, 512), (1024, 16384)


def measure(
    world: World, experts: tuple[int, ...] = (8, 32), sizes: tuple[int, int] | None = None, repeats: int = 21
) -> list[Comparison]:
    """Compare ways to compute, then layouts."""
    gpu = world.device.type == "cuda"
    hidden, tokens = sizes or (GPU if gpu else CPU)
    dtype = torch.bfloat16 if gpu else torch.float32
    rows = []
    for count in world.progress(experts, f"experts on {world.size} ranks"):
        modules = _experts(count, hidden).to(world.device, dtype)
        lay_side_by_side(list(modules))
        ways: dict[str, Any] = {way: _compute(world, modules, way, tokens, hidden, dtype) for way in WAYS}
        medians = interleaved(world, ways, repeats)
        for way in ("grouped", "padded"):
            what = f"{tokens} rows through {count} experts and back, {way}, {world.size} ranks"
            most = 1.0 if way == "grouped" and not gpu else None
            rows += by_both_clocks(what, medians[way], medians["loop"], "a loop over experts", most)
        if count < world.size or world.size == 1:
            continue
        wide = hidden if gpu else 4 * hidden  # what data parallelism has to send grows with the square of the width
        steps = {name: _step(world, count, tokens, wide, dtype, name) for name in ("spread", "everywhere")}
        medians = interleaved(world, steps, repeats)
        what = f"a step of {count} experts, spread over {world.size} ranks"
        rows += by_both_clocks(what, medians["spread"], medians["everywhere"], "all experts on every rank")
    return rows


def _experts(count: int, hidden: int) -> nn.ModuleList:
    return nn.ModuleList(MLP(GPTConfig(hidden=hidden, heads=1)) for _ in range(count))


def _compute(
    world: World, experts: nn.ModuleList, way: Way, tokens: int, hidden: int, dtype: torch.dtype
) -> Callable[[], Tensor]:
    """Rows through their experts, forward and backward; rows and experts are the same for each way."""
    generator = torch.Generator().manual_seed(world.rank)
    rows = torch.randn(tokens, hidden, generator=generator).to(world.device, dtype).requires_grad_()
    expert = torch.randint(len(experts), (tokens,), generator=generator).to(world.device)
    towards = torch.ones_like(rows)

    def step() -> Tensor:
        rows.grad = None
        experts.zero_grad()
        out = WAYS[way](list(experts), rows, expert)
        out.backward(towards)
        return out

    return step


def _step(world: World, experts: int, tokens: int, hidden: int, dtype: torch.dtype, layout: str) -> Callable[[], None]:
    """Forward, backward and final gradients of a mixture, with the experts on different ranks or all on each."""
    torch.manual_seed(0)
    router = Switch(hidden, experts, capacity_factor=None)
    layer = MoELayer(router, list(_experts(experts, hidden)), "grouped").to(world.device, dtype)
    spread = layout == "spread"
    model = ExpertParallel(layer, split_data_parallel(world.size)) if spread else DataParallel(layer)
    generator = torch.Generator().manual_seed(world.rank)
    x = torch.randn(8, tokens // 8, hidden, generator=generator).to(world.device, dtype)
    return partial(_train, model, x)


def _train(model: nn.Module, x: Tensor) -> None:
    assert isinstance(model, (ExpertParallel, DataParallel))
    model.zero_grad()
    y = model(x)
    (y.square().mean() + model.module.auxiliary_loss).backward()
    model.synchronize()
