"""What the demo of `linear` claims of numbers, and of what happens at the same time.

Why t ranks do not give the bits of one device. A row-parallel layer adds its K products in t groups, and then the
groups; the all-reduce of dX does the same to its own. Any order of K additions is within γ_K · Σ|xw| of the true sum,
γ_K = Ku/(1 − Ku), u = eps/2 (Higham 2002, §3.1; a bias makes it K + 1), so two orders are within twice that of each
other. Nothing else differs: whole numbers, whose sums are exact, give the same bits; and one device that adds the
ranks' summands in the ring's order gives the ring's bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

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
from minitrain.lessons.tensor_parallel import common as lesson
from minitrain.tensor_parallel import linear as small
from minitrain.tensor_parallel.full.linear import ColumnParallelLinear, RowParallelLinear

HIGHAM = "Higham 2002, §3.1"

Kind = Literal["column", "row"]
Make = Callable[..., nn.Module]

# The dims in which a rank has a part of: Y, dX, the weight's gradient, the bias's. None: it has all.
PARTS: dict[Kind, tuple[int | None, ...]] = {"column": (-1, None, 0, 0), "row": (None, -1, 1, None)}


def inputs(
    world: World, tokens: int, width: int, dtype: torch.dtype = torch.float32, whole: bool = False
) -> tuple[nn.Linear, Tensor, Tensor]:
    """A linear layer, its input, and its output's gradient, the same on all ranks; with `whole`, whole numbers."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        if whole:
            return torch.randint(-8, 9, shape, generator=generator).to(world.device, dtype)
        return torch.randn(*shape, generator=generator, dtype=dtype).to(world.device)

    linear = nn.Linear(width, width, device="meta")
    linear.weight, linear.bias = nn.Parameter(draw(width, width)), nn.Parameter(draw(width))
    return linear, draw(tokens, width), draw(tokens, width)


def part(tensor: Tensor, dim: int | None, world: World) -> Tensor:
    """This rank's part of a tensor."""
    return tensor if dim is None else tensor.tensor_split(world.size, dim)[world.rank].contiguous()


def run_layer(world: World, kind: Kind, make: Make, linear: nn.Linear, x: Tensor, grad_y: Tensor) -> lesson.Counted:
    """One layer forward and backward, on this rank's part of the input or of the output's gradient."""
    of_y, of_x, *_ = PARTS[kind]
    return lesson.run_module(make(linear), part(x, of_x, world), part(grad_y, of_y, world))


def like_one_device(world: World, kind: Kind, make: Make, tokens: int, width: int) -> list[Claim]:
    """Claims that Y, dX, dA and db are those of one device: in whole numbers, in float64 and in float32."""
    found, expected = {}, {}
    for name, dtype, whole in (
        ("whole numbers", torch.float32, True),
        ("float64", torch.float64, False),
        ("float32", torch.float32, False),
    ):
        linear, x, grad_y = inputs(world, tokens, width, dtype, whole)
        found[name] = run_layer(world, kind, make, linear, x, grad_y).results
        expected[name] = _parts(world, kind, lesson.run_module(linear, x, grad_y).results)
    bounds = _parts(world, kind, _bounds(linear, x, grad_y))
    errors = zip(found["float32"], expected["float32"], bounds, strict=True)
    share = max(((mine.double() - its.double()).abs() / bound).max().item() for mine, its, bound in errors)
    on = f"{kind}-parallel, Y, dX, dA, db against one device: "
    unlike = lesson.different(found["whole numbers"], expected["whole numbers"])
    apart = lesson.distance(found["float64"], expected["float64"])
    return [
        Claim(on + "elements unlike, whole numbers", "0", 0, unlike, "1", lesson.MEGATRON, "compared"),
        Claim(on + "distance, float64", "0", 0, apart, "1", lesson.MEGATRON, "compared", absolute=1e-12),
        Claim(on + "distance / bound, float32", "|error| ≤ 2γ_K Σ|xw|", 1, share, "1", HIGHAM, "compared", "<="),
    ]


def _parts(world: World, kind: Kind, tensors: list[Tensor]) -> list[Tensor]:
    return [part(tensor, dim, world) for tensor, dim in zip(tensors, PARTS[kind], strict=True)]


def _bounds(linear: nn.Linear, x: Tensor, grad_y: Tensor) -> list[Tensor]:
    """2γ_K Σ|xw| of Y, dX, the weight's gradient and the bias's."""
    x, dy = x.double().abs(), grad_y.double().abs()
    weight, bias = linear.weight.detach().double().abs(), linear.bias.detach().double().abs()
    sums = [x @ weight.T + bias, dy @ weight, dy.T @ x, dy.sum(0)]
    terms = [linear.in_features + 1, linear.out_features, len(x), len(x)]
    return [2 * _gamma(k) * total for k, total in zip(terms, sums, strict=True)]


def _gamma(terms: int) -> float:
    rounding = terms * torch.finfo(torch.float32).eps / 2
    return rounding / (1 - rounding)


def small_form(world: World, kind: Kind, make: Make, tokens: int, width: int) -> list[Claim]:
    """Claims on a layer of the small form: what its all-reduces carry, and Y, dX, dA, db of one device."""
    linear, x, grad_y = inputs(world, tokens, width, whole=True)
    found = run_layer(world, kind, make, linear, x, grad_y)
    expected = _parts(world, kind, lesson.run_module(linear, x, grad_y).results)
    way, other = ("backward", found.forward) if kind == "column" else ("forward", found.backward)
    carried = getattr(found, way).payload("all_reduce") + sum(entry.bytes for entry in other.entries)
    on, payload = f"small form, {kind}-parallel: ", costs.payload(1, tokens, width)
    unlike = lesson.different(found.results, expected)
    return [
        Claim(
            on + f"payload of all communications, an all-reduce {way}",
            "tokens · width · w",
            payload,
            carried,
            "B",
            lesson.MEGATRON,
            key=True,
        ),
        Claim(
            on + "elements of Y, dX, dA, db that differ from one device's, whole numbers",
            "0",
            0,
            unlike,
            "1",
            lesson.MEGATRON,
            "compared",
            key=True,
        ),
    ]


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
    one, ordered = on + "elements unlike one device's", on + "elements unlike one device that adds in the ring's order"
    unlike = lesson.different([found], [again])
    reason = "another order of K additions"
    return [
        Claim(one, f"≥ 1: {reason}", 1, lesson.different([found], [alone]), "1", HIGHAM, "compared", ">=")
        if world.size > 1
        else Claim.needs_ranks(2, one, f"≥ 1: {reason}", HIGHAM),
        Claim(ordered, "0", 0, unlike, "1", lesson.RING, "compared"),
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
    source = "Narayanan et al. 2021"
    return Claim(f"{what}: products made while dX is under way", formula, predicted, watch.products, "1", source)


def demo(world: World, tokens: int = 24, width: int = 8) -> list[Claim]:
    """Runs one layer of each kind; the table shows what is sent when, what is held, and why last bits differ.

    Args:
        tokens: Rows of the input.
        width: Inputs and outputs of each rank: the matrix has so many times the number of ranks, and so always divides.
    """
    whole = width * world.size
    payload, traffic = costs.payload(1, tokens, whole), ring_all_reduce(tokens * whole, 4, world.size, world.rank)
    one = lesson.Sums(1, payload, traffic, ("1", "tokens · width · w", "2S − cᵣ − cᵣ₊₁ ≈ 2(t−1)/t · S"))
    linear, x, grad_y = inputs(world, tokens, whole)
    claims = [
        *small_form(world, "column", small.ColumnParallelLinear.from_linear, tokens, whole),
        *small_form(world, "row", small.RowParallelLinear.from_linear, tokens, whole),
    ]
    for kind, make, forward, backward, held, formula in (
        ("column", ColumnParallelLinear.from_linear, lesson.NONE, one, costs.column_parameters, "(in + 1) · out/t · w"),
        ("row", RowParallelLinear.from_linear, one, lesson.NONE, costs.row_parameters, "(in/t + 1) · out · w"),
    ):
        counted = run_layer(world, kind, make, linear, x, grad_y)
        on_ring = run_layer(world, kind, partial(make, comm=Comm(collectives=ring)), linear, x, grad_y)
        claims += lesson.sums(f"{kind}-parallel", counted, on_ring, forward, backward, key=True)
        held_here, predicted = storage_bytes(make(linear).parameters()), 4 * held(whole, whole, world.size)
        claims.append(
            Claim(f"{kind}-parallel: bytes of parameters", formula, predicted, held_here, "B", lesson.MEGATRON)
        )
        claims += like_one_device(world, kind, make, tokens, whole)
    watch = UnderWay()
    watched = ColumnParallelLinear.from_linear(linear, Comm(collectives=watch))
    my_grad_y = part(grad_y, -1, world)
    claims.append(products_under_way("column-parallel", watched, watch, x, my_grad_y, 1))
    on_ring = partial(RowParallelLinear.from_linear, comm=Comm(collectives=ring))
    return claims + order_of_additions(world, on_ring, tokens, whole)
