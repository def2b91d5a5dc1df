"""Writing with a KV cache against writing without one: the time of a continuation, on every rank by itself."""

from __future__ import annotations

import torch

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.comm.world import World
from minitrain.inference.kv_cache import add_caches, generate
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

SIZES = (4, 128, 64, 64)  # layers, width, tokens of a prompt, tokens written


def measure(world: World, sizes: tuple[int, int, int, int] = SIZES, repeats: int = 5) -> list[Comparison]:
    """Compare both, with the greedy choice of tokens, for one sequence and for eight."""
    layers, hidden, prompt, count = sizes
    config = GPTConfig(positions=prompt + count, layers=layers, hidden=hidden, heads=4)
    model, cached = (GPT(config, seed=0).eval().to(world.device) for _ in range(2))
    rows = []
    for batch in world.progress((1, 8), f"inference on {world.size} ranks"):
        generator = torch.Generator().manual_seed(batch)
        tokens = torch.randint(config.vocabulary, (batch, prompt), generator=generator).to(world.device)

        def ours(batch: int = batch, tokens: torch.Tensor = tokens) -> None:
            add_caches(cached, prompt + count)
            generate(cached, tokens, count)

        def theirs(tokens: torch.Tensor = tokens) -> None:
            model.generate(tokens, count, temperature=0.0)

        medians = interleaved(world, {"ours": ours, "theirs": theirs}, repeats)
        what = f"{count} tokens after a prompt of {prompt}, {batch} sequences, with a cache, {world.size} ranks"
        rows.append(Comparison(what, medians["ours"].wall, medians["theirs"].wall, "the same without a cache"))
    return rows
