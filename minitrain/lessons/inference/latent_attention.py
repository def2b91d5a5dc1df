"""The lesson of `minitrain.inference.latent_attention`: bytes of the cache, its texts, and the heads over ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.comm.messages import all_gather
from minitrain.costs import inference as costs
from minitrain.costs.tensor_parallel import payload
from minitrain.inference.latent_attention import LatentAttention
from minitrain.lessons.claims import Claim
from minitrain.lessons.inference.kv_cache import BATCH, VOCABULARY, prompts
from minitrain.lessons.rows import ROUNDING, Rows
from minitrain.roofline.flops import Flops

HEAD, KV_RANK, ROPE, LAYERS = 4, 6, 2, 3


def demo(world: World) -> list[Claim]:
    """Keeps latents in place of keys and values; the table shows the cache, texts, operations, and heads over ranks."""
    rows, prompt, count, bound = Rows("DeepSeek-V2, §2.1"), 7, 9, (1e-12, "10⁻¹²", ROUNDING)
    n, writer, tokens = world.size, Writer(world), prompts(world, prompt)
    hidden, heads = writer.table.shape[1], 2 * n
    right, _ = writer.generate(tokens, count, cached=False)
    found, caches = writer.generate(tokens, count, cached=True)
    what = "tokens, written from absorbed latents, that differ from those written without a cache"
    rows.equal(what, found, right, source="derived")
    # The last token is written, and not yet read.
    seen = prompt + count - 1
    what, held = "bytes of the caches on every rank, however many they are", storage_bytes(caches)
    rows.add(what, "L (r + ρ) s b w", costs.latent_cache_bytes(LAYERS, KV_RANK, ROPE, seen, BATCH, 8), held)

    x = torch.randn(BATCH, seen, hidden, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = x.to(world.device).requires_grad_()
    sizes = hidden, heads, HEAD, KV_RANK, ROPE
    layer = LatentAttention(*sizes).to(x)
    for case, absorb in (("absorbed", True), ("keys and values made", False)):
        with torch.no_grad(), Flops() as flops:
            layer(x[:, -1:], caches[0][:, :-1], absorb)
        what, predicted = (
            "operations for the next token on this rank",
            costs.latent_token_flops(*sizes, seen, absorb, n),
        )
        formula = "2h(r + ρ) + a/t (2h(2d + ρ) + "
        formula += "4dr + s(4r + 2ρ))" if absorb else "s(4dr + 4d + 2ρ))"
        rows.add(what, formula, BATCH * predicted, flops.total, "FLOP", "derived", case=case)
        y, forward, gradients, backward = both_ways(layer, x, absorb)
        what = "output and all gradients: distance from one device that makes keys and values, float64"
        rows.near(what, [y, *gradients], on_one_device(layer, x, world), *bound, case=case)
        for way, ledger, width in (("forward", forward, hidden), ("backward", backward, hidden + KV_RANK + ROPE)):
            what, formula = f"bytes into all-reduces, {way}", "bsh · w" if way == "forward" else "bs(h + r + ρ) · w"
            sent = ledger.payload("all_reduce")
            rows.add(what, formula, payload(BATCH, seen, width, 8), sent, source="derived", case=case)
    return rows.claims()


class Writer(nn.Module):
    """Layers of latent attention, two heads per rank, and nothing else; in float64, so that rounding never decides."""

    def __init__(self, world: World):
        super().__init__()
        torch.manual_seed(20)
        heads, hidden = 2 * world.size, 2 * HEAD * world.size
        layers = [LatentAttention(hidden, heads, HEAD, KV_RANK, ROPE) for _ in range(LAYERS)]
        self.table, self.head = (nn.Parameter(torch.randn(VOCABULARY, hidden)) for _ in range(2))
        for layer in layers:
            # Sharper than in a new model, so that what is written depends on positions.
            layer.query.data.mul_(3)
            layer.output.data.mul_(3)
        self.layers = nn.ModuleList(layers)
        self.to(world.device, torch.float64)

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int, cached: bool) -> tuple[Tensor, list[Tensor]]:
        """Continue each text with its likeliest tokens: by a cache and absorbed, or from the whole text each time."""
        caches: list[Tensor | None] = [None] * LAYERS
        for _ in range(count):
            new = tokens if caches[0] is None else tokens[:, caches[0].shape[1] :]
            x = self.table[new]
            for index, layer in enumerate(self.layers):
                y, latents = layer(x, caches[index], cached)
                x, caches[index] = x + y, latents if cached else None
            tokens = torch.cat([tokens, (x[:, -1:] @ self.head.T).argmax(-1)], 1)
        return tokens, [cache for cache in caches if cache is not None]


def both_ways(layer: LatentAttention, x: Tensor, absorb: bool) -> tuple[Tensor, Ledger, list[Tensor], Ledger]:
    """The output, and gradients of x and of this rank's parameters; and what each way sends."""
    with Ledger() as forward:
        y, _ = layer(x, absorb=absorb)
    with Ledger() as backward:
        gradients = torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])
    return y, forward, list(gradients), backward


def on_one_device(layer: LatentAttention, x: Tensor, world: World) -> list[Tensor]:
    """The same by equations 9 to 19, head by head, with all heads; of their gradients those of this rank's."""
    down, cut = layer.down.detach().clone().requires_grad_(), []
    for weight in (layer.query, layer.key, layer.value, layer.output):
        whole = all_gather(weight.detach()).wait()
        assert whole is not None
        cut.append(whole.requires_grad_())
    (c, k_rotary), y = F.linear(x, down).split([KV_RANK, ROPE], -1), torch.zeros_like(x)
    for query, up_key, up_value, output in zip(*cut, strict=True):
        q, q_rotary = F.linear(x, query).split([HEAD, ROPE], -1)
        q, k = torch.cat([q, turned(q_rotary)], -1), torch.cat([F.linear(c, up_key), turned(k_rotary)], -1)
        mean = F.scaled_dot_product_attention(q, k, F.linear(c, up_value), is_causal=True)
        y = y + F.linear(mean, output)
    dx, d_down, *others = torch.autograd.grad(y.sin().sum(), [x, down, *cut])
    return [y, dx, d_down, *(each.chunk(world.size)[world.rank] for each in others)]


def turned(x: Tensor) -> Tensor:
    """RoPE by complex numbers: a + ib at position p times e^(ipθ)."""
    a, b = x.chunk(2, -1)
    half, places = ROPE // 2, torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
    angle = places[:, None] / 10_000 ** (torch.arange(half, device=x.device) / half)
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)
