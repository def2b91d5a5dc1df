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
from minitrain.lessons.claims import as_key
from minitrain.lessons.tensor_parallel import common as lesson
from minitrain.lessons.tensor_parallel import linear as lesson_linear
from minitrain.models.gpt import Block, GPTConfig
from minitrain.tensor_parallel import attention as small
from minitrain.tensor_parallel.full.attention import RowFirstMLP, parallel_attention, parallel_mlp
from minitrain.tensor_parallel.full.parameter_layout import sum_partial_gradients

Cut = Callable[..., nn.Module]  # what makes this rank's part of a module: (module, comm)
GQA, NARAYANAN = "Ainslie et al. 2023, §2.2", "Narayanan et al. 2021, appendix"


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


def like_one_device(world: World, sizes: GPTConfig, batch: int, parts: dict[str, Cut]) -> list[Claim]:
    """Claims that the output and all gradients are those of one device: in float64 and in float32.

    The bound in float32 is one of first order. Each of the K additions on the longest way from x through forward and
    backward to a gradient rounds by at most u = eps/2 of what it adds, on one device and on t: 2γ_K apart. It takes
    each tensor by its largest value, and leaves out that layers may enlarge errors: additions err by √K u, not Ku, and
    that is the room for it.
    """
    relative = absolute = 0.0
    for dtype in (torch.float64, torch.float32):
        whole, (x, grad_y) = block(world, sizes, dtype), inputs(world, sizes, batch, dtype)
        parallel = in_parallel(whole, parts)
        found = lesson.run_module(parallel, x, grad_y)
        gaps = distances(world, whole, found, parallel, x, grad_y)
        if dtype == torch.float64:
            absolute = max(gap for gap, _ in gaps)
        else:
            relative = max(gap / largest for gap, largest in gaps)
    rounding = longest_path(sizes, batch) * torch.finfo(torch.float32).eps / 2
    on = "a layer, Y, dX and all gradients against one device: "
    bound, higham = 2 * rounding / (1 - rounding), "Higham 2002, §3.1"
    return [
        Claim(on + "distance, float64", "0", 0, absolute, "1", lesson.MEGATRON, "compared", absolute=1e-12),
        Claim(on + "distance / largest value, float32", "2γ_K", bound, relative, "1", higham, "compared", "<="),
    ]


def small_form(world: World, sizes: GPTConfig, batch: int) -> list[Claim]:
    """Claims on a block with the small form's attention and MLP: what is sent and held, and one device's gradients."""
    whole, (x, grad_y) = block(world, sizes, torch.float64), inputs(world, sizes, batch, torch.float64)
    parts: dict[str, Cut] = {
        "attention": lambda attention, _: small.ParallelAttention(attention),
        "mlp": lambda mlp, _: small.ParallelMLP(mlp),
    }
    parallel = in_parallel(whole, parts)
    found = lesson.run_module(parallel, x, grad_y)
    gap = max(gap for gap, _ in distances(world, whole, found, parallel, x, grad_y))
    payload = 2 * costs.payload(batch, sizes.positions, sizes.hidden, item=8)
    held = 8 * costs.layer_parameters(sizes.hidden, sizes.heads, world.size)
    on, formula = "small form, a layer: ", "(12h²/t + 7h/t + 6h) · w"
    forward, backward = (ledger.payload("all_reduce") for ledger in (found.forward, found.backward))
    apart = on + "Y, dX and all gradients, distance from one device, float64"
    return as_key(
        Claim(on + "payload of two all-reduces forward", "2 · bsh · w", payload, forward, "B", lesson.MEGATRON),
        Claim(on + "payload of two all-reduces backward", "2 · bsh · w", payload, backward, "B", lesson.MEGATRON),
        Claim(on + "bytes of parameters", formula, held, storage_bytes(parallel.parameters()), "B", lesson.MEGATRON),
        Claim(apart, "0", 0, gap, "1", lesson.MEGATRON, "compared", absolute=1e-12),
    )


def longest_path(sizes: GPTConfig, batch: int) -> int:
    """K: additions behind each other from x through forward and backward to the gradient of a weight."""
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
    predicted = costs.layer_flops(batch, sizes.positions, sizes.hidden, sizes.heads, world.size)
    formulas = ("24bsh²/t + 4bs²h/t", "2 × forward")
    measured = [counter.get_total_flops() for counter in (forward, backward)]
    return [
        Claim(f"a layer, {way}: FLOPs of this rank's products", formula, number, found, "1", NARAYANAN)
        for way, formula, number, found in zip(predicted._fields, formulas, predicted, measured, strict=True)
    ]


def shared_heads(world: World, batch: int, seq: int, head_size: int, cut: Cut) -> list[Claim]:
    """Claims on attention whose key and value heads are fewer than ranks: what is added once a step, and the result."""
    kv_heads = max([k for k in range(1, world.size) if world.size % k == 0], default=1)
    sizes = config(world, seq, head_size, kv_heads)
    whole, (x, grad_y) = block(world, sizes, torch.float64), inputs(world, sizes, batch, torch.float64)
    parallel = in_parallel(whole, {"attention": cut})
    found = lesson.run_module(parallel, x, grad_y)
    with Ledger() as ledger:
        sum_partial_gradients(parallel)
    gap = max(gap for gap, _ in distances(world, whole, found, parallel, x, grad_y))
    elements = costs.shared_heads_elements(sizes.hidden, sizes.heads, kv_heads, world.size)
    on = "fewer key and value heads than ranks: "
    formula = "2k · h/a · (h + 1) · w; 0 on one rank"
    return [
        Claim(on + "payload of their gradients' sum", formula, 8 * elements, ledger.payload("all_reduce"), "B", GQA),
        Claim(on + "distance from one device, float64", "0", 0, gap, "1", GQA, "compared", absolute=1e-12),
    ]


def demo(world: World, batch: int = 2, seq: int = 12, head_size: int = 4) -> list[Claim]:
    """Cuts a block of the GPT; the table shows four all-reduces, what a rank holds and computes, and the dearer way.

    Args:
        batch: Sequences.
        seq: Tokens of each.
        head_size: Width of a head. Each rank has two heads, so the block's width always divides by the ranks.
    """
    sizes = config(world, seq, head_size)
    hidden, shape = sizes.hidden, (batch, seq, sizes.hidden)
    whole = block(world, sizes, torch.float32)
    x, grad_y = inputs(world, sizes, batch, torch.float32)

    def run_cut(comm: Comm, **parts: Cut) -> lesson.Counted:
        return lesson.run_module(in_parallel(whole, parts, comm), x, grad_y)

    native, through_ring = Comm(), Comm(collectives=ring)
    both: dict[str, Cut] = {"attention": parallel_attention, "mlp": parallel_mlp}
    payload, traffic = costs.payload(*shape), costs.layer_traffic(*shape, world.size, world.rank)
    layer = lesson.Sums(2, 2 * payload, traffic, ("2", "2 · bsh · w", "Σ 2S − cᵣ − cᵣ₊₁ ≈ 4(t−1)/t · bsh · w"))
    claims = small_form(world, sizes, batch)
    claims += lesson.sums("a layer", run_cut(native, **both), run_cut(through_ring, **both), layer, layer, key=True)

    traffic = costs.row_first_mlp_traffic(*shape, world.size, world.rank)
    wide = lesson.Sums(1, 4 * payload, traffic, ("1", "4 · bsh · w", "all-reduce and gather ≈ 9(t−1)/t · bsh · w"))
    row_first = run_cut(native, mlp=RowFirstMLP), run_cut(through_ring, mlp=RowFirstMLP)
    claims += lesson.sums("an MLP cut rows first", *row_first, wide, wide)

    parallel = in_parallel(whole, both)
    held, predicted = storage_bytes(parallel.parameters()), 4 * costs.layer_parameters(hidden, sizes.heads, world.size)
    formula = "(12h²/t + 7h/t + 6h) · w"
    claims.append(Claim("a layer: bytes of parameters", formula, predicted, held, "B", lesson.MEGATRON))
    claims += products(world, sizes, batch, both)
    claims += like_one_device(world, sizes, batch, both)
    claims += shared_heads(world, batch, seq, head_size, parallel_attention)
    watch = lesson_linear.UnderWay()
    watched = parallel_attention(whole.attention, Comm(collectives=watch))
    claims.append(lesson_linear.products_under_way("attention", watched, watch, x, grad_y, 3))
    with world.timed("forward and backward of a layer"):
        lesson.run_module(parallel, x, grad_y)
    return claims
