"""The lesson of `minitrain.inference.latent_attention`: bytes of the cache, its texts, and the heads over ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.comm.memory import storage_bytes
from minitrain.costs import inference as costs
from minitrain.costs import tensor_parallel
from minitrain.inference.latent_attention import LatentAttention
from minitrain.lessons.inference.kv_cache import BATCH, VOCABULARY, prompts
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.models.rotary import Rotary

HEAD, KV_RANK, ROPE, LAYERS = 4, 6, 2, 3


def demo(world: World) -> list[Claim]:
    """Keeps latents in place of keys and values; the table shows the cache, texts, and heads over ranks."""
    rows, n, prompt, count = Rows("DeepSeek-AI 2024, DeepSeek-V2, §2.1"), world.size, 7, 9
    layers, tokens = [new_layer(world, seed, sharp=3.0) for seed in range(LAYERS)], prompts(world, prompt)
    found, caches = generate(layers, tokens, count, cached=True)
    what = "tokens, written from absorbed latents, that differ from those written without a cache"
    rows.equal(what, found, generate(layers, tokens, count, cached=False)[0])
    seen = prompt + count - 1  # the last token is written, and not yet read
    what, held = "bytes of the caches on every rank, however many they are", storage_bytes(caches)
    rows.add(what, "L (r + ρ) s b w", costs.latent_cache_bytes(LAYERS, KV_RANK, ROPE, seen, BATCH, 8), held)

    layer, x = new_layer(world, LAYERS), torch.randn(BATCH, seen, 2 * HEAD * n, dtype=torch.float64)
    x = x.to(world.device).requires_grad_()
    right = on_one_device(layer, x, world)
    hidden = 2 * HEAD * n
    for absorb in (True, False):
        case = "absorbed" if absorb else "keys and values made"
        with Ledger() as ledger:
            y, _ = layer(x, absorb=absorb)
            gradients = torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])
        what = "output and all gradients: distance from one device that makes keys and values, float64"
        rows.near(what, [y, *gradients], right, 1e-12, "10⁻¹²", ROUNDING, case)
        what = "bytes into all-reduces, forward, and backward of x and the latent"
        predicted = tensor_parallel.payload(BATCH, seen, hidden + hidden + KV_RANK + ROPE, 8)
        rows.add(what, "bs(h + h + r + ρ) · w", predicted, ledger.payload("all_reduce"), source="derived", case=case)
    return rows.claims()


def new_layer(world: World, seed: int, sharp: float = 1.0) -> LatentAttention:
    """Two heads per rank; attention can be sharper than in a new model, so that texts depend on positions."""
    torch.manual_seed(seed)
    layer = LatentAttention(2 * HEAD * world.size, 2 * world.size, HEAD, KV_RANK, ROPE)
    layer.query.data.mul_(sharp)
    return layer.to(world.device, torch.float64)


@torch.no_grad()
def generate(layers: list[LatentAttention], tokens: Tensor, count: int, cached: bool) -> tuple[Tensor, list[Tensor]]:
    """Likeliest tokens of a model of these layers: absorbed and with caches, or from the whole text each time."""
    torch.manual_seed(20)
    table, head = torch.randn(2, VOCABULARY, layers[0].down.shape[1]).to(tokens.device, torch.float64)
    caches: dict[int, Tensor] = {}
    for _ in range(count):
        x = table[tokens[:, -1:] if cached and caches else tokens]
        for index, layer in enumerate(layers):
            y, caches[index] = layer(x, caches.get(index) if cached else None, cached)
            x = x + y
        tokens = torch.cat([tokens, (x[:, -1:] @ head.T).argmax(-1)], 1)
    return tokens, list(caches.values())


def on_one_device(layer: LatentAttention, x: Tensor, world: World) -> list[Tensor]:
    """Equations 9 to 19 with all heads, a GPT's rotation and torch's attention; of the gradients, this rank's."""
    cut = [torch.cat(gather_objects(weight.detach().cpu())).to(world.device) for weight in list(layer.parameters())[1:]]
    weights = [weight.requires_grad_() for weight in (layer.down.detach().clone(), *cut)]
    down, query, key, value, output = weights
    c, k_rotary = F.linear(x, down)[:, None].split([KV_RANK, ROPE], -1)
    q, q_rotary = (x[:, None] @ query.mT).split([HEAD, ROPE], -1)
    q_rotary, k_rotary = Rotary(10_000)(q_rotary, k_rotary)
    q, k = torch.cat([q, q_rotary], -1), torch.cat([c @ key.mT, k_rotary.expand_as(q_rotary)], -1)
    mean = F.scaled_dot_product_attention(q, k, c @ value.mT, is_causal=True)
    y = torch.einsum("basd,ahd->bsh", mean, output)
    dx, d_down, *others = torch.autograd.grad(y.sin().sum(), [x, *weights])
    return [y, dx, d_down, *(each.chunk(world.size)[world.rank] for each in others)]
