"""What the demo of `attention` runs: one block of the GPT, alone and over the ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, World
from minitrain.comm.comm import Comm
from minitrain.comm.memory import storage_bytes
from minitrain.costs import tensor_parallel as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.tensor_parallel import common as lesson
from minitrain.lessons.tensor_parallel import linear as lesson_linear
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import Block
from minitrain.tensor_parallel import attention as small
from minitrain.tensor_parallel.full.attention import RowFirstMLP, parallel_attention, parallel_mlp
from minitrain.tensor_parallel.full.parameter_layout import sum_partial_gradients

Cut = Callable[..., nn.Module]  # what makes this rank's part of a module: (module, comm)
FEW = "fewer key and value heads than ranks"
NARAYANAN = "Narayanan et al. 2021, appendix"
SMALL: dict[str, Cut] = {
    "attention": lambda attention, _: small.ParallelAttention(attention),
    "mlp": lambda mlp, _: small.ParallelMLP(mlp),
}
FULL: dict[str, Cut] = {"attention": parallel_attention, "mlp": parallel_mlp}


def config(world: World, seq: int, head_size: int, kv_heads: int | None = None) -> GPTConfig:
    """A block with two query heads on each rank: its width is a multiple of the number of ranks, and so divides."""
    heads = 2 * world.size
    return GPTConfig(positions=seq, hidden=heads * head_size, heads=heads, kv_heads=kv_heads, attention="plain")


def block(world: World, sizes: GPTConfig, dtype: torch.dtype) -> Block:
    """The block for one device, the same on all ranks. No bias is 0, so that one added twice would show."""
    made = Block(sizes).to(world.device, dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn / parameter.shape[-1] ** 0.5)
    return made


def inputs(world: World, sizes: GPTConfig, batch: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x and the gradient of y, `[batch, seq, hidden]`, the same on all ranks."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(2, batch, sizes.positions, sizes.hidden, generator=generator, dtype=torch.float64)
    x, grad_y = drawn.to(world.device, dtype)
    return x, grad_y


def in_parallel(whole: Block, parts: dict[str, Cut], comm: Comm | None = None) -> Block:
    """A copy of a block with its attention, its MLP, or both over all ranks."""
    made = copy.deepcopy(whole)
    for name, cut in parts.items():
        setattr(made, name, cut(getattr(whole, name), comm))
    return made


def distances(
    world: World, whole: nn.Module, found: lesson.Counted, parallel: nn.Module, x: Tensor, dy: Tensor
) -> list[tuple[float, float]]:
    """How far the output, dX, and the gradients of each layer are from one device: (largest difference, largest value).

    A layer's weight and bias are taken together. The gradient of the key's bias is 0, since softmax does not change
    when all scores of a row do, and what rounding leaves of it cannot be measured by itself.
    """
    y, grad_x, *gradients = lesson.run_module(whole, x, dy).results
    pairs = {"y": [(found.results[0], y)], "x": [(found.results[1], grad_x)]}
    for (name, mine), gradient in zip(parallel.named_parameters(), gradients, strict=True):
        assert mine.grad is not None
        its = lesson.own_part(mine, gradient, world.rank, world.size)
        pairs.setdefault(name.rpartition(".")[0], []).append((mine.grad, its))
    apart = []
    for together in pairs.values():
        mine, its = zip(*together, strict=True)
        apart.append((lesson.distance(mine, its), max(each.abs().max().item() for each in its)))
    return apart


def distance(world: World, sizes: GPTConfig, batch: int, parts: dict[str, Cut]) -> Claim:
    """The claim that the output and all gradients are those of one device, in float64."""
    whole, (x, grad_y) = block(world, sizes, torch.float64), inputs(world, sizes, batch, torch.float64)
    parallel = in_parallel(whole, parts)
    found = lesson.run_module(parallel, x, grad_y)
    sum_partial_gradients(parallel)
    found = found._replace(results=[*found.results[:2], *(p.grad for p in parallel.parameters() if p.grad is not None)])
    gap = max(gap for gap, _ in distances(world, whole, found, parallel, x, grad_y))
    return Claim("", "10⁻¹²", 1e-12, gap, "1", lesson.MEGATRON, "compared", "<=")


def within_rounding(world: World, sizes: GPTConfig, batch: int, parts: dict[str, Cut]) -> Claim:
    """The claim that the output and all gradients are near those of one device, in float32.

    The bound is of first order, and not a proof. Each of the K additions on the longest way from x through forward and
    backward to a gradient rounds by at most u = eps/2 of what it adds, on one device and on t: 2γ_K apart. It takes
    each tensor by its largest value, and ignores that layers may enlarge errors: additions err by √K u rather than Ku,
    which leaves room for that.
    """
    whole, (x, grad_y) = block(world, sizes, torch.float32), inputs(world, sizes, batch, torch.float32)
    parallel = in_parallel(whole, parts)
    found = lesson.run_module(parallel, x, grad_y)
    apart = max(gap / largest for gap, largest in distances(world, whole, found, parallel, x, grad_y))
    rounding = longest_path(sizes, batch) * torch.finfo(torch.float32).eps / 2
    bound, source = 2 * rounding / (1 - rounding), "heuristic, no proof"
    what = "a layer, Y, dX and all gradients against one device: distance / largest value, float32"
    return Claim(what, "2γ_K", bound, apart, "1", source, "compared", "<=")


def small_form(world: World, sizes: GPTConfig, batch: int) -> Claim:
    """The claim on what the all-reduces of a block with the small form's attention and MLP carry."""
    parallel = in_parallel(block(world, sizes, torch.float64), SMALL)
    found = lesson.run_module(parallel, *inputs(world, sizes, batch, torch.float64))
    predicted = 2 * costs.payload(batch, sizes.positions, sizes.hidden, item=8)
    ways = {"forward": found.forward, "backward": found.backward}
    claims = {
        way: Claim("", "2 · bsh · w", predicted, ledger.payload("all_reduce"), "B", lesson.PAYLOAD)
        for way, ledger in ways.items()
    }
    return fold("small form, a layer: payload of two all-reduces, each way", claims, key=True)


def longest_path(sizes: GPTConfig, batch: int) -> int:
    """K: consecutive additions from x through forward and backward to the gradient of a weight."""
    h, s, head = sizes.hidden, sizes.positions, sizes.head_size
    attention = h + h + head + 2 * s + h  # norm, query, scores, softmax, weighted sum, output
    mlp = h + h + 4 * h  # norm, up, down
    backward_mlp = h + 4 * h + h  # down, up, norm
    backward_attention = h + head + 2 * s + 3 * h + h  # output, weights, softmax, scores, three projections, norm
    return attention + mlp + backward_mlp + backward_attention + batch * s  # a weight's gradient adds over tokens


def products(world: World, sizes: GPTConfig, batch: int, parts: dict[str, Cut]) -> list[Claim]:
    """Claims on the operations of this rank's products, counted as they are dispatched."""
    x, grad_y = inputs(world, sizes, batch, torch.float32)
    parallel = in_parallel(block(world, sizes, torch.float32), parts)
    x.requires_grad_()
    with FlopCounterMode(display=False) as forward:
        y = parallel(x)
    with FlopCounterMode(display=False) as backward:
        y.backward(grad_y)
    heads = sizes.heads, world.size, sizes.kv_heads
    predicted = costs.layer_flops(batch, sizes.positions, sizes.hidden, *heads)
    formulas = ("24bsh²/t + 4bs²h/t", "2 × forward")
    measured = [counter.get_total_flops() for counter in (forward, backward)]
    return [
        Claim("", formula, number, found, "1", NARAYANAN)
        for formula, number, found in zip(formulas, predicted, measured, strict=True)
    ]


def parameters(world: World, sizes: GPTConfig, parts: dict[str, Cut], dtype: torch.dtype = torch.float32) -> Claim:
    """The claim on the bytes of parameters that this rank holds."""
    parallel = in_parallel(block(world, sizes, dtype), parts)
    held = dtype.itemsize * costs.layer_parameters(sizes.hidden, sizes.heads, world.size, sizes.kv_heads)
    measured = storage_bytes(parallel.parameters())
    return Claim("", "(12h²/t + 7h/t + 6h) · w", held, measured, "B", lesson.MEGATRON)


def shared_heads(world: World, sizes: GPTConfig, batch: int) -> Claim:
    """The claim on what is sent once per step to add gradients of key and value heads that ranks share, if they do."""
    parallel = in_parallel(block(world, sizes, torch.float32), {"attention": parallel_attention})
    lesson.run_module(parallel, *inputs(world, sizes, batch, torch.float32))
    with Ledger() as ledger:
        sum_partial_gradients(parallel, Comm(collectives=ring))
    assert sizes.kv_heads is not None
    heads = sizes.heads, sizes.kv_heads, world.size, world.rank
    predicted = costs.shared_heads_traffic(sizes.hidden, *heads).bytes
    formula = "2S − cᵣ − cᵣ₊₁, S = 2k · h/a · (h + 1) · w; 0 if k ≥ n"
    return Claim("", formula, predicted, ledger.sent, "B", "derived")


def communication(world: World, sizes: GPTConfig, batch: int) -> list[Claim]:
    """Claims on all-reduces of a layer, and of an MLP that is cut rows first."""
    shape = (batch, sizes.positions, sizes.hidden)
    whole = block(world, sizes, torch.float32)
    x, grad_y = inputs(world, sizes, batch, torch.float32)

    def run_cut(forward: lesson.Sums, backward: lesson.Sums, **parts: Cut) -> lesson.Run:
        by_torch, through_ring = (
            lesson.run_module(in_parallel(whole, parts, comm), x, grad_y) for comm in (Comm(), Comm(collectives=ring))
        )
        return lesson.Run(by_torch, through_ring, forward, backward)

    payload, calls = costs.payload(*shape), costs.all_reduces()
    layer = lesson.Sums(calls.forward, 2 * payload, costs.layer_traffic(*shape, world.size, world.rank))
    back = layer._replace(calls=calls.backward)
    wide = lesson.Sums(1, 4 * payload, costs.row_first_mlp_traffic(*shape, world.size, world.rank))
    of_layer = "2", "2 · bsh · w", "Σ 2S − cᵣ − cᵣ₊₁ ≈ 4(t−1)/t · bsh · w"
    of_wide = "1", "4 · bsh · w", "all-reduce and gather ≈ 9(t−1)/t · bsh · w"
    return [
        small_form(world, sizes, batch),
        *lesson.sums("a layer", run_cut(layer, back, **FULL), of_layer, key=True),
        *lesson.sums("an MLP cut rows first", run_cut(wide, wide, mlp=RowFirstMLP), of_wide),
    ]


def demo(world: World, batch: int = 2, seq: int = 12, head_size: int = 4) -> list[Claim]:
    """Cuts a block of the GPT; the table shows four all-reduces, what a rank holds and computes, and a worse order.

    Args:
        batch: Sequences.
        seq: Tokens of each.
        head_size: Width of a head. Each rank has two heads, so the block's width always divides by the ranks.
    """
    sizes = config(world, seq, head_size)
    # The most key and value heads that are still fewer than ranks.
    few = config(world, seq, head_size, max([k for k in range(1, world.size) if world.size % k == 0], default=1))
    one_each = config(world, seq, head_size, world.size)
    held = {
        "small form": parameters(world, sizes, SMALL, torch.float64),
        "full form": parameters(world, sizes, FULL),
        FEW: parameters(world, few, FULL),
    }
    near = {
        "small form": distance(world, sizes, batch, SMALL),
        "full form": distance(world, sizes, batch, FULL),
        "an MLP cut rows first": distance(world, sizes, batch, {"mlp": RowFirstMLP}),
        FEW: distance(world, few, batch, FULL),
    }
    forward, backward = (
        {"as many key and value heads as query heads": one, FEW: other}
        for one, other in zip(products(world, sizes, batch, FULL), products(world, few, batch, FULL), strict=True)
    )
    added = {FEW: shared_heads(world, few, batch), "as many as ranks": shared_heads(world, one_each, batch)}
    watch, (x, grad_y) = lesson_linear.UnderWay(), inputs(world, sizes, batch, torch.float32)
    whole = block(world, sizes, torch.float32)
    watched = parallel_attention(whole.attention, Comm(collectives=watch))
    with world.timed("forward and backward of a layer"):
        lesson.run_module(in_parallel(whole, FULL), x, grad_y)
    return [
        *communication(world, sizes, batch),
        fold("a layer, forward: FLOPs of this rank's products", forward),
        fold("a layer, backward: FLOPs of this rank's products", backward),
        fold("a layer: bytes of parameters", held, key=True),
        fold("a layer, Y, dX and all gradients against one device: distance, float64", near, key=True),
        within_rounding(world, sizes, batch, FULL),
        fold(f"{FEW}: bytes sent to add their gradients", added),
        lesson_linear.products_under_way("attention", watched, watch, x, grad_y, 3),
    ]
