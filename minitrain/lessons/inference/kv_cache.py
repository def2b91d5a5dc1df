"""The lesson of `minitrain.inference.kv_cache`: the same text as without a cache, its bytes, and its operations.

The picture: what an H100 writes in a second, over the number of sequences that it writes at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import inference as costs
from minitrain.inference.kv_cache import KVCache, add_caches, generate
from minitrain.lessons.pictures import inference as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.roofline.flops import Flops
from minitrain.tensor_parallel.full.parallelize import parallelize

POPE, KAPLAN = "Pope et al. 2022, §2", "Kaplan et al. 2020, §2.1, for 2N; derived for attention"
HEAD, LAYERS, VOCABULARY, BATCH = 4, 3, 61, 2


def demo(world: World) -> list[Claim]:
    """Writes with a cache, on one rank and with the heads divided; the table shows text, bytes and operations."""
    prompt, count = 7, 9  # tokens of each prompt, and tokens that are written
    rows, tokens, total = Rows(POPE), prompts(world, prompt), prompt + count
    n, sizes = world.size, (HEAD, total, BATCH, 8)
    for case, kv_heads in (("GPT", 2 * n), ("one key and value head", 1)):
        model = gpt(world, kv_heads, total)
        with Flops() as plainly:
            right = model.generate(tokens, count, temperature=0.0)
        caches = add_caches(model, total)
        with Flops() as cached:
            found = generate(model, tokens, count)
        what = "tokens that differ from those written without a cache; with one key and value head"
        rows.equal(what, found, right, "0", POPE, case)
        what, held = "bytes of the caches of all layers; with one key and value head", stored(caches)
        rows.add(what, "2 L k d s b w", costs.cache_bytes(LAYERS, kv_heads, *sizes), held, case=case)
        hidden, what, more = HEAD * 2 * n, f"operations to write {count} tokens with", {"source": KAPLAN, "case": case}
        model_sizes = costs.gpt_parameters(LAYERS, hidden, HEAD * kv_heads, VOCABULARY), LAYERS, hidden, prompt, count
        few, many = (BATCH * f(*model_sizes) for f in (costs.with_cache_flops, costs.without_cache_flops))
        rows.add(f"{what} a cache", "prefill + Σ (2N + 4Lh(s + i))", few, cached.total, "FLOP", **more)
        rows.add(f"{what}out a cache", "Σ (2N + 4Lh(s + i)) (s + i)", many, plainly.total, "FLOP", **more)

    divided = gpt(world, positions=total)
    right = divided.generate(tokens, count, temperature=0.0)
    parallelize(divided)
    add_caches(divided, total)
    found = generate(divided, tokens, count)
    rows.equal(f"tensor parallelism, {n} ranks: tokens that differ", found, right, source=POPE)
    world.figure(pictures.throughput)
    return rows.claims()


def gpt(world: World, kv_heads: int | None = None, positions: int = 64) -> GPT:
    """Two heads per rank, in float64, so that no two logits are so near that rounding decides.

    Attention is sharper and counts for more than in a new model, so that what is written depends on positions.
    """
    sizes = VOCABULARY, positions, LAYERS, HEAD * 2 * world.size, 2 * world.size, kv_heads
    config = GPTConfig(*sizes, attention="plain")
    model = GPT(config, seed=20).double().eval().to(world.device)
    for block in model.blocks:
        for name, factor in (("query", 10_000), ("output", 1_000)):
            block.get_submodule(f"attention.{name}").get_parameter("weight").data.mul_(factor)
    return model


def prompts(world: World, length: int, count: int = BATCH) -> Tensor:
    generator = torch.Generator().manual_seed(20)
    return torch.randint(VOCABULARY, (count, length), generator=generator).to(world.device)


def stored(caches: list[KVCache]) -> int:
    return storage_bytes([tensor for cache in caches for tensor in (cache.keys, cache.values)])
