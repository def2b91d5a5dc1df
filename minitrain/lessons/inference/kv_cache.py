"""The lesson of `minitrain.inference.kv_cache`: the same text as without a cache, its bytes, and its operations.

The picture: what an H100 writes in a second, over the number of sequences that it writes at once.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import inference as costs
from minitrain.costs import roofline
from minitrain.inference.kv_cache import KVCache, add_caches, generate
from minitrain.lessons.claims import Claim, fold
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.roofline.flops import Flops
from minitrain.tensor_parallel.full.parallelize import parallelize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POPE, KAPLAN = "Pope et al. 2022, §2", "Kaplan et al. 2020, §2.1, for 2N; derived for attention"
HEAD, LAYERS, VOCABULARY, BATCH = 4, 3, 61, 2


def demo(world: World, prompt: int = 7, count: int = 9) -> list[Claim]:
    """Writes with a cache, on one rank and with the heads divided; the table shows text, bytes and operations.

    Args:
        prompt: s, the tokens of each of two prompts.
        count: c, the tokens that are written.
    """
    if prompt < 1 or count < 2:
        raise ValueError(f"prompt={prompt} must be at least 1 and count={count} at least 2: a prefill and a decode")
    world.figure(picture)
    with world.timed(f"{count} tokens without a cache, and with one"):
        claims = [same_text(world, prompt, count)]
    return [*claims, *held(world, prompt + count), *operations(world, prompt, count), *over_ranks(world, prompt, count)]


def gpt(world: World, kv_heads: int | None = None, rope: bool = False, positions: int = 64) -> GPT:
    """Two heads per rank, in float64, so that no two logits are so near that rounding decides.

    Attention is sharper and counts for more than in a new model, so that what is written depends on positions.
    """
    heads = 2 * world.size
    kind = "rope" if rope else "learned"
    config = GPTConfig(
        VOCABULARY, positions, LAYERS, HEAD * heads, heads, kv_heads, positions_kind=kind, attention="plain"
    )
    model = GPT(config, seed=20).double().eval().to(world.device)
    with torch.no_grad():
        for block in model.blocks:
            for name, factor in (("query", 10_000), ("output", 1_000)):
                block.get_submodule(f"attention.{name}").get_parameter("weight").mul_(factor)
    return model


def prompts(world: World, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(20)
    return torch.randint(VOCABULARY, (BATCH, length), generator=generator).to(world.device)


def same_text(world: World, prompt: int, count: int) -> Claim:
    """The claim that a cache changes no token."""
    cases, tokens = {}, prompts(world, prompt)
    models = {"GPT": (None, False), "one key and value head": (1, False), "rotary positions": (None, True)}
    for name, (kv_heads, rope) in models.items():
        model = gpt(world, kv_heads, rope, prompt + count)
        right = model.generate(tokens, count, temperature=0.0)
        add_caches(model, prompt + count)
        different = int((generate(model, tokens, count) != right).sum())
        cases[name] = Claim("", "0", 0, different, "tokens", POPE, "compared")
    return fold("tokens that differ from those written without a cache; two other models", cases, key=True)


def held(world: World, tokens: int) -> list[Claim]:
    """Claims on the bytes of the caches, and on those of a published model."""
    cases = {}
    for kv_heads in (None, 1):
        model = gpt(world, kv_heads)
        caches = add_caches(model, tokens)
        generate(model, prompts(world, 1), 1)  # the first token reserves the room of all
        predicted = costs.cache_bytes(LAYERS, kv_heads or 2 * world.size, HEAD, tokens, BATCH, 8)
        cases[f"{kv_heads} key and value heads"] = Claim("", "2 L k d s b w", predicted, stored(caches), "B", POPE)
    return [fold("bytes of the caches of all layers; with one key and value head", cases, key=True)]


def stored(caches: list[KVCache]) -> int:
    return storage_bytes([tensor for cache in caches for tensor in (cache.keys, cache.values)])


def operations(world: World, prompt: int, count: int) -> list[Claim]:
    """Claims on operations: of the prefill, of the last token, and of all tokens with and without a cache."""
    model, tokens = gpt(world, positions=prompt + count), prompts(world, prompt)
    hidden = model.config.hidden
    sizes = costs.gpt_parameters(LAYERS, hidden, hidden, VOCABULARY), LAYERS, hidden
    with Flops() as plainly:
        model.generate(tokens, count, temperature=0.0)
    add_caches(model, prompt + count)
    with Flops() as prefill:
        generate(model, tokens, 1)
    with Flops() as single, torch.no_grad():
        model(tokens[:, -1:])
    other = gpt(world, positions=prompt + count)
    add_caches(other, prompt + count)
    with Flops() as cached:
        generate(other, tokens, count)
    each = {
        "prefill": Claim(
            "", "(2N + 4Lhs) s", BATCH * costs.prefill_flops(*sizes, prompt), prefill.total, "FLOP", KAPLAN
        ),
        "one token": Claim(
            "", "2N + 4Lhs", BATCH * costs.token_flops(*sizes, prompt + 1), single.total, "FLOP", KAPLAN
        ),
    }
    return [
        fold(f"operations of the prefill of {prompt} tokens, and of the next token", each, key=True),
        Claim(
            f"operations to write {count} tokens with a cache",
            "prefill + Σ (2N + 4Lh(s + i))",
            BATCH * costs.with_cache_flops(*sizes, prompt, count),
            cached.total,
            "FLOP",
            KAPLAN,
            key=True,
        ),
        Claim(
            f"operations to write {count} tokens without a cache",
            "Σ (2N + 4Lh(s + i)) (s + i)",
            BATCH * costs.without_cache_flops(*sizes, prompt, count),
            plainly.total,
            "FLOP",
            KAPLAN,
            key=True,
        ),
    ]


def over_ranks(world: World, prompt: int, count: int) -> list[Claim]:
    """Claims on tensor parallelism: the cache is divided with the heads, and only activations are sent."""
    model, tokens = gpt(world, positions=prompt + count), prompts(world, prompt)
    right = model.generate(tokens, count, temperature=0.0)
    hidden = model.config.hidden
    divided = copy.deepcopy(model)
    parallelize(divided)
    caches = add_caches(divided, prompt + count)
    found = generate(divided, tokens, count - 1)
    with Ledger() as ledger, torch.no_grad():
        # The last token by itself, as any decoding step.
        logits, _ = divided(found[:, -1:])
    found = torch.cat([found, logits.argmax(-1)], 1)
    n = world.size
    reduced = costs.tensor_parallel_bytes(LAYERS, hidden, BATCH, 8)
    predicted = costs.cache_bytes(LAYERS, 2 * n, HEAD, prompt + count, BATCH, 8, tensor=n)
    what = f"tensor parallelism, {n} ranks: "
    return [
        Claim(f"{what}tokens that differ", "0", 0, int((found != right).sum()), "tokens", POPE, "compared", key=True),
        Claim(f"{what}bytes of this rank's caches", "2 L k/t d s b w", predicted, stored(caches), "B", POPE),
        Claim(
            f"{what}bytes into the all-reduces of one token",
            "(2L + 1) b h w",
            reduced,
            ledger.payload("all_reduce"),
            "B",
            "Shoeybi et al. 2019, §3",
        ),
    ]


def picture() -> Figure:
    """Tokens per second and the seconds of a step over the batch, for 6.7 billion parameters on an H100, by theory."""
    from matplotlib.figure import Figure

    shape, machine = roofline.SEVEN_BILLION, roofline.MACHINES["H100"]
    figure = Figure(figsize=(7, 3), layout="constrained", facecolor="white")
    axes = figure.subplots()
    batches = [2**i for i in range(11)]
    for kv_heads, tokens, color in ((32, 2048, "#D55E00"), (32, 256, "#E69F00"), (8, 2048, "#0072B2")):
        size = costs.gpt_parameters(shape.layers, shape.hidden, 128 * kv_heads, shape.vocabulary)
        model = costs.Model(shape.layers, shape.hidden, shape.heads, kv_heads, size)
        room = machine.size - 2 * size
        most = costs.tokens_that_fit(room, shape.layers, kv_heads, 128) // tokens
        rates = [b / costs.seconds(costs.decode(model, b, tokens), machine) for b in batches]
        label = f"{kv_heads} key and value heads, {tokens:,} tokens"
        fits = [b for b in batches if b <= most]
        axes.loglog(fits, rates[: len(fits)], color=color, marker="o", ms=3, label=label)
        axes.loglog(batches[len(fits) - 1 :], rates[len(fits) - 1 :], color=color, ls=":", lw=1)
    axes.axvline(costs.full_batch(machine), color="#999999", lw=1)
    place = (0.9 * costs.full_batch(machine), 300)
    axes.annotate("products take as long as\nreading the weights", place, fontsize=8, ha="right")
    axes.set_xlabel("sequences written at once (dotted: the cache does not fit)")
    axes.set_ylabel("tokens per second")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure
