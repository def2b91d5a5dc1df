"""The grouped product against a loop over experts, and experts on different ranks against all experts on every rank.

The first three send nothing: every rank puts its own rows through its own experts. One product alone shows what the
loop costs; experts with their backward, where both sides also write a gradient for each parameter, show what is left of
it; so does the small form of dropless experts, whose weights lie in one tensor. In the last both sides take the same
step of a mixture, up to final gradients: tokens travel to experts, or gradients of all experts travel to all ranks.
Ranks that share cores slow each other down, so the target is CPU time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.comm.world import World
from minitrain.data_parallel import DataParallel
from minitrain.mixture_of_experts import dropless
from minitrain.mixture_of_experts.full.compute import WAYS, Way, grouped_linear, lay_side_by_side
from minitrain.mixture_of_experts.full.expert_parallel import ExpertParallel, split_data_parallel
from minitrain.mixture_of_experts.full.layer import MoELayer
from minitrain.mixture_of_experts.full.switch import Switch
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import MLP

TARGETS = {8: 1.1, 32: 2.5}
"""Speed of the grouped product over that of the loop, by number of experts."""

CPU, GPU = (32, 512), (1024, 16384)
"""Width of a token, and tokens of a rank. Small on CPUs: with many rows for each expert, products take all the time."""

MANY = 10  # products in a repetition, which would be too short for the clock by itself


def measure(
    world: World, experts: tuple[int, ...] = tuple(TARGETS), sizes: tuple[int, int] | None = None, repeats: int = 21
) -> list[Comparison]:
    """Compare ways to compute, then layouts.

    Args:
        world: This rank.
        experts: Numbers of experts.
        sizes: Width of a token and tokens of each rank; None: small on CPUs, larger on GPUs.
        repeats: Repetitions of each.
    """
    gpu = world.device.type == "cuda"
    hidden, tokens = sizes or (GPU if gpu else CPU)
    dtype = torch.bfloat16 if gpu else torch.float32
    rows = []
    for count in world.progress(experts, f"experts on {world.size} ranks"):
        loop, grouped = _products(world, count, tokens, hidden, dtype)
        medians = interleaved(world, {"loop": _often(loop), "grouped": _often(grouped)}, repeats, warmups=4)
        what, against = f"{tokens} rows by {count} matrices, grouped, {world.size} ranks, ", "a loop over matrices"
        target = None if gpu else TARGETS.get(count)
        ours, theirs = medians["grouped"], medians["loop"]
        rows.append(Comparison(what + "CPU time", ours.cpu / MANY, theirs.cpu / MANY, against, target=target))
        rows.append(Comparison(what + "wall clock", ours.wall / MANY, theirs.wall / MANY, against))
        modules = [MLP(GPTConfig(hidden=hidden, heads=1)).to(world.device, dtype) for _ in range(count)]
        lay_side_by_side(modules)
        ways: dict[str, Callable[[], None]] = {
            way: _compute(world, modules, way, tokens, hidden, dtype) for way in WAYS
        }
        medians = interleaved(world, ways, repeats, warmups=4)
        for way in ("grouped", "padded"):
            what = f"{tokens} rows through {count} experts and back, {way}, {world.size} ranks, CPU time"
            rows.append(Comparison(what, medians[way].cpu, medians["loop"].cpu, "a loop over experts"))
        dropless_loop, dropless_grouped = _dropless(world, count, tokens, hidden, dtype)
        medians = interleaved(world, {"loop": dropless_loop, "grouped": dropless_grouped}, repeats, warmups=4)
        what = f"dropless: {tokens} tokens through 2 of {count} experts and back, {world.size} ranks, CPU time"
        rows.append(Comparison(what, medians["grouped"].cpu, medians["loop"].cpu, "a loop over experts"))
    for count in experts:
        if count < world.size or world.size == 1:
            continue
        wide = hidden if gpu else 4 * hidden  # what data parallelism has to send grows with the square of the width
        steps = {name: _step(world, count, tokens, wide, dtype, name) for name in ("spread", "everywhere")}
        medians = interleaved(world, steps, repeats, warmups=4)
        ours, theirs = medians["spread"], medians["everywhere"]
        what, against = f"a step of {count} experts, spread over {world.size} ranks, ", "all experts on every rank"
        rows.append(Comparison(what + "CPU time", ours.cpu, theirs.cpu, against, speed=False))
        rows.append(Comparison(what + "wall clock", ours.wall, theirs.wall, against))
    return rows


def _products(
    world: World, experts: int, tokens: int, hidden: int, dtype: torch.dtype
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """The first layer of every expert, by a loop and grouped; both leave rows in the order in which they came."""
    generator = torch.Generator().manual_seed(world.rank)
    rows = torch.randn(tokens, hidden, generator=generator).to(world.device, dtype)
    expert = torch.randint(experts, (tokens,), generator=generator).to(world.device)
    weight = torch.randn(experts, 4 * hidden, hidden, generator=generator).to(world.device, dtype)
    bias = torch.randn(experts, 4 * hidden, generator=generator).to(world.device, dtype)

    def loop() -> Tensor:
        y = rows.new_zeros(tokens, 4 * hidden)
        for number in range(experts):
            mine = (expert == number).nonzero().squeeze(-1)
            y.index_add_(0, mine, F.linear(rows.index_select(0, mine), weight[number], bias[number]))
        return y

    def grouped() -> Tensor:
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=experts)
        return grouped_linear(rows.index_select(0, order), weight, bias, counts).index_select(0, order.argsort())

    return loop, grouped


def _often(product: Callable[[], Tensor]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(MANY):
            product()

    return run


def _compute(
    world: World, experts: list[MLP], way: Way, tokens: int, hidden: int, dtype: torch.dtype
) -> Callable[[], None]:
    """Rows through their experts, forward and backward; rows and experts are the same for each way."""
    generator = torch.Generator().manual_seed(world.rank)
    rows = torch.randn(tokens, hidden, generator=generator).to(world.device, dtype).requires_grad_()
    expert = torch.randint(len(experts), (tokens,), generator=generator).to(world.device)
    towards = torch.ones_like(rows)

    def step() -> None:
        rows.grad = None
        for module in experts:
            module.zero_grad()
        WAYS[way](experts, rows, expert).backward(towards)

    return step


def _dropless(
    world: World, experts: int, tokens: int, hidden: int, dtype: torch.dtype
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The small form, forward and backward, and the same by a loop over experts; each token chooses two."""
    generator = torch.Generator().manual_seed(world.rank)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(world.device, dtype).requires_grad_()

    x, up, down = draw(tokens, hidden), draw(experts, 4 * hidden, hidden), draw(experts, hidden, 4 * hidden)
    gates, chosen = torch.rand(tokens, experts, generator=generator).to(world.device, dtype).topk(2, -1)
    towards = torch.ones_like(x)

    def loop() -> Tensor:
        y = torch.zeros_like(x)
        for number in range(experts):
            token, choice = (chosen == number).nonzero(as_tuple=True)
            output = F.gelu(x[token] @ up[number].T) @ down[number].T
            y = y.index_add(0, token, gates[token, choice, None] * output)
        return y

    def step(form: Callable[[], Tensor]) -> None:
        x.grad = up.grad = down.grad = None
        form().backward(towards)

    return partial(step, loop), partial(step, lambda: dropless.compute(x, chosen, gates, up, down))


def _step(world: World, experts: int, tokens: int, hidden: int, dtype: torch.dtype, layout: str) -> Callable[[], None]:
    """Forward, backward and final gradients of a mixture, with the experts on different ranks or all on each."""
    torch.manual_seed(0)
    modules = [MLP(GPTConfig(hidden=hidden, heads=1)) for _ in range(experts)]
    layer = MoELayer(Switch(hidden, experts, capacity_factor=None), modules, "grouped").to(world.device, dtype)
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
