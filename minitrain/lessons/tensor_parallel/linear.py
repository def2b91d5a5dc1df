"""What the demo of `linear` claims of numbers, and of what happens at the same time.

Why t ranks do not give the bits of one device. A row-parallel layer adds its K products in t groups, and then the
groups; the all-reduce of dX does the same to its own. Any order of K additions is within γ_K · Σ|xw| of the true sum,
γ_K = Ku/(1 − Ku), u = eps/2 (Higham 2002, §3.1; a bias makes it K + 1), so two orders are within twice that of each
other. Nothing else differs: whole numbers, whose sums are exact, give the same bits; and one device that adds the
ranks' partial sums in the ring's order gives the ring's bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.collectives.full import native, ring
from minitrain.comm import World
from minitrain.comm.comm import Comm
from minitrain.comm.memory import storage_bytes
from minitrain.comm.messages import Handle
from minitrain.costs import tensor_parallel as costs
from minitrain.costs.communication import ring_all_reduce
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.tensor_parallel import common as lesson
from minitrain.tensor_parallel import linear as small
from minitrain.tensor_parallel.full.linear import ColumnParallelLinear, RowParallelLinear

HIGHAM = "Higham 2002, §3.1"

Kind = Literal["column", "row"]
Make = Callable[..., nn.Module]


class Sizes(NamedTuple):
    """Of a layer of all ranks together."""

    tokens: int
    inputs: int
    outputs: int


# When a layer's sum is made, its payload, and the size of what is summed: dX is as wide as the input, Y as the output.
SUMMED: dict[Kind, tuple[str, str, str]] = {
    "column": ("backward", "tokens · in · w", "inputs"),
    "row": ("forward", "tokens · out · w", "outputs"),
}

# The dims in which a rank has a part of: Y, dX, the weight's gradient, the bias's. None: it has all.
PARTS: dict[Kind, tuple[int | None, ...]] = {"column": (-1, None, 0, 0), "row": (None, -1, 1, None)}


def inputs(
    world: World,
    tokens: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    whole: bool = False,
    outputs: int | None = None,
) -> tuple[nn.Linear, Tensor, Tensor]:
    """A linear layer, its input, and its output's gradient, the same on all ranks.

    Args:
        world: This rank.
        tokens: Rows of the input.
        width: Inputs of the layer.
        dtype: Of all numbers.
        whole: Draw whole numbers.
        outputs: Of the layer; None: as many as inputs.
    """
    outputs = outputs or width
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        if whole:
            return torch.randint(-8, 9, shape, generator=generator).to(world.device, dtype)
        return torch.randn(*shape, generator=generator, dtype=dtype).to(world.device)

    linear = nn.Linear(width, outputs, device="meta")
    linear.weight, linear.bias = nn.Parameter(draw(outputs, width)), nn.Parameter(draw(outputs))
    return linear, draw(tokens, width), draw(tokens, outputs)


def part(tensor: Tensor, dim: int | None, world: World) -> Tensor:
    """This rank's part of a tensor."""
    return tensor if dim is None else tensor.tensor_split(world.size, dim)[world.rank].contiguous()


def run_layer(world: World, kind: Kind, make: Make, linear: nn.Linear, x: Tensor, grad_y: Tensor) -> lesson.Counted:
    """One layer forward and backward, on this rank's part of the input or of the output's gradient."""
    of_y, of_x, *_ = PARTS[kind]
    return lesson.run_module(make(linear), part(x, of_x, world), part(grad_y, of_y, world))


def unlike_one_device(world: World, kind: Kind, make: Make, sizes: Sizes) -> Claim:
    """The claim that Y, dX, dA and db are those of one device, in whole numbers."""
    linear, x, grad_y = inputs(world, sizes.tokens, sizes.inputs, whole=True, outputs=sizes.outputs)
    found = run_layer(world, kind, make, linear, x, grad_y).results
    expected = _parts(world, kind, lesson.run_module(linear, x, grad_y).results)
    return Claim("", "0", 0, lesson.different(found, expected), "1", lesson.MEGATRON, "compared")


def within_rounding(world: World, kind: Kind, make: Make, sizes: Sizes, dtype: torch.dtype) -> Claim:
    """The claim that Y, dX, dA and db are as near to one device's as two orders of additions are to each other."""
    linear, x, grad_y = inputs(world, sizes.tokens, sizes.inputs, dtype, outputs=sizes.outputs)
    found = run_layer(world, kind, make, linear, x, grad_y).results
    expected = _parts(world, kind, lesson.run_module(linear, x, grad_y).results)
    bounds = _parts(world, kind, _bounds(linear, x, grad_y))
    errors = zip(found, expected, bounds, strict=True)
    share = max(((mine.double() - its.double()).abs() / bound).max().item() for mine, its, bound in errors)
    return Claim("", "|error| ≤ 2γ_K Σ|xw|", 1, share, "1", HIGHAM, "compared", "<=")


def _parts(world: World, kind: Kind, tensors: list[Tensor]) -> list[Tensor]:
    return [part(tensor, dim, world) for tensor, dim in zip(tensors, PARTS[kind], strict=True)]


def _bounds(linear: nn.Linear, x: Tensor, grad_y: Tensor) -> list[Tensor]:
    """2γ_K Σ|xw| of Y, dX, the weight's gradient and the bias's."""
    x, dy = x.double().abs(), grad_y.double().abs()
    weight, bias = linear.weight.detach().double().abs(), linear.bias.detach().double().abs()
    sums = [x @ weight.T + bias, dy @ weight, dy.T @ x, dy.sum(0)]
    terms = [linear.in_features + 1, linear.out_features, len(x), len(x)]
    unit = torch.finfo(linear.weight.dtype).eps / 2
    return [2 * _gamma(k, unit) * total for k, total in zip(terms, sums, strict=True)]


def _gamma(terms: int, unit: float) -> float:
    return terms * unit / (1 - terms * unit)


def small_form(world: World, kind: Kind, make: Make, sizes: Sizes) -> Claim:
    """The claim on what a layer of the small form sends: its all-reduce, and nothing the other way."""
    linear, x, grad_y = inputs(world, sizes.tokens, sizes.inputs, outputs=sizes.outputs)
    found = run_layer(world, kind, make, linear, x, grad_y)
    way, formula, width = SUMMED[kind]
    busy, silent = (found.forward, found.backward) if way == "forward" else (found.backward, found.forward)
    carried = busy.payload("all_reduce") + sum(entry.bytes for entry in silent.entries)
    predicted = costs.payload(1, sizes.tokens, getattr(sizes, width))
    return Claim("", formula, predicted, carried, "B", lesson.PAYLOAD)


def order_of_additions(world: World, make: Make, tokens: int, width: int) -> list[Claim]:
    """Claims that the order of additions makes a row-parallel layer differ from one device, and nothing else does.

    Args:
        world: This rank.
        make: Makes a row-parallel layer whose sums go through the ring.
        tokens: Rows of the input.
        width: Inputs and outputs.
    """
    linear, x, grad_y = inputs(world, tokens, width)
    found = run_layer(world, "row", make, linear, x, grad_y).results[0]
    alone = linear(x).detach()
    cuts = zip(x.tensor_split(world.size, 1), linear.weight.detach().tensor_split(world.size, 1), strict=True)
    summands = [F.linear(my_x.contiguous(), my_w.contiguous()).view(-1).tensor_split(world.size) for my_x, my_w in cuts]
    chunks = []
    for chunk in range(world.size):  # chunk c starts at rank c+1 and visits all
        total = summands[(chunk + 1) % world.size][chunk]
        for step in range(2, world.size + 1):
            total = total + summands[(chunk + step) % world.size][chunk]
        chunks.append(total)
    again = torch.cat(chunks).view_as(alone) + linear.bias.detach()
    on = "row-parallel, Y in float32: "
    one = on + "elements that differ from one device's"
    ordered = on + "elements that differ from one device's that adds in the ring's order"
    unlike = lesson.different([found], [again])
    formula = "≥ 1: another order of K additions"
    return [
        Claim(one, formula, 1, lesson.different([found], [alone]), "1", HIGHAM, "compared", ">=")
        if world.size > 1
        else Claim.needs_ranks(2, one, formula, HIGHAM),
        Claim(ordered, "0: the same order", 0, unlike, "1", "derived", "compared"),
    ]


class UnderWay(TorchDispatchMode):
    """Counts the matrix products that are computed while an all-reduce is under way.

    It is a set of collectives too, those of `native`, and so sees when an all-reduce starts and when it is waited for.

    Attributes:
        products: Their number so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.under_way = 0
        self.products = 0

    reduce_scatter, all_gather = staticmethod(native.reduce_scatter), staticmethod(native.all_gather)
    broadcast = staticmethod(native.broadcast)

    def all_reduce(self, tensor: Tensor, group: dist.ProcessGroup | None, *, check: bool | None = None) -> Handle:
        started = native.all_reduce(tensor, group, check=check)
        self.under_way += 1
        return Handle((), tensor, lambda: self._arrived(started))

    def _arrived(self, started: Handle) -> None:
        started.wait()
        self.under_way -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.products += bool(self.under_way)
        return func(*args, **(kwargs or {}))


def products_under_way(
    what: str, module: nn.Module, watch: UnderWay, x: Tensor, grad_y: Tensor, predicted: int
) -> Claim:
    """The claim that gradients of weights are computed while the input's gradient travels."""
    with watch:
        lesson.run_module(module, x, grad_y)
    formula = "one for each weight that takes x"
    return Claim(f"{what}: products made while dX is under way", formula, predicted, watch.products, "1", "derived")


def demo(world: World, tokens: int = 25, inputs_each: int = 8, outputs_each: int = 12) -> list[Claim]:
    """Runs one layer of each kind; the table shows what is sent when, what is held, and why last bits differ.

    Args:
        tokens: Rows of the input.
        inputs_each: Inputs for each rank: the matrix has so many times the number of ranks, and so always divides.
        outputs_each: Outputs for each rank.
    """
    sizes = Sizes(tokens, inputs_each * world.size, outputs_each * world.size)
    linear, x, grad_y = inputs(world, tokens, sizes.inputs, outputs=sizes.outputs)
    kinds: dict[Kind, tuple[Make, Make]] = {
        "column": (small.ColumnParallelLinear.from_linear, ColumnParallelLinear.from_linear),
        "row": (small.RowParallelLinear.from_linear, RowParallelLinear.from_linear),
    }
    unlike, rounding, calls, claims = {}, {}, {}, []
    for kind, (small_make, make) in kinds.items():
        for form, its in (("small form", small_make), ("full form", make)):
            unlike[f"{form}, {kind}-parallel"] = unlike_one_device(world, kind, its, sizes)
            for dtype in (torch.float32, torch.float64):
                rounding[f"{form}, {kind}-parallel, {dtype}"] = within_rounding(world, kind, its, sizes, dtype)
        counted = run_layer(world, kind, make, linear, x, grad_y)
        on_ring = run_layer(world, kind, partial(make, comm=Comm(collectives=ring)), linear, x, grad_y)
        way, formula, width = SUMMED[kind]
        payload = costs.payload(1, tokens, getattr(sizes, width))
        one = lesson.Sums(1, payload, ring_all_reduce(payload // 4, 4, world.size, world.rank))
        predicted = (one, lesson.NONE) if way == "forward" else (lesson.NONE, one)
        formulas = "1", formula, "2S − cᵣ − cᵣ₊₁ ≈ 2(t−1)/t · S"
        run = lesson.Run(counted, on_ring, *predicted)
        calls[kind], of_full_form, sent = lesson.sums(f"{kind}-parallel", run, formulas, key=True)
        carried = {"small form": small_form(world, kind, small_make, sizes), "full form": of_full_form}
        what = f"{kind}-parallel, small and full form: payload of one all-reduce, {way} only"
        claims += [fold(what, carried, key=True), sent, _parameters(world, kind, make, linear)]
    watch = UnderWay()
    watched = ColumnParallelLinear.from_linear(linear, Comm(collectives=watch))
    on_ring = partial(RowParallelLinear.from_linear, comm=Comm(collectives=ring))
    return [
        *claims,
        fold("all-reduces: column-parallel one backward, row-parallel one forward", calls),
        fold("elements of Y, dX, dA, db that differ from one device's, whole numbers", unlike, key=True),
        fold("Y, dX, dA, db against one device: distance / bound, float32 and float64", rounding),
        products_under_way("column-parallel", watched, watch, x, part(grad_y, -1, world), 1),
        *order_of_additions(world, on_ring, tokens, sizes.inputs),
    ]


def _parameters(world: World, kind: Kind, make: Make, linear: nn.Linear) -> Claim:
    formulas = {"column": "(in + 1) · out/t · w", "row": "(in/t + 1) · out · w"}
    count = costs.column_parameters if kind == "column" else costs.row_parameters
    predicted = 4 * count(linear.in_features, linear.out_features, world.size)
    held = storage_bytes(make(linear).parameters())
    return Claim(f"{kind}-parallel: bytes of parameters", formulas[kind], predicted, held, "B", lesson.MEGATRON)
