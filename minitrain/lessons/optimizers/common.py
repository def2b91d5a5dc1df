"""Shared by the demos of optimizers: a small example, the bytes of states, torch's optimizers, steps under ZeRO-1.

Two ways to compute the same may differ by their roundings: numbers and derivatives in the examples are at most 4, so
that each rounding moves a result by at most 4 · 4 · 2⁻⁵³. `bound` counts the roundings of both ways generously.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.comm.messages import all_gather
from minitrain.costs import optimizers as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.optimizers.by_hand import Matrix
from minitrain.zero.stage1 import Zero1

THETA: Matrix = ((1.0, -0.5, 0.25), (2.0, 0.75, -1.5))
# The second is larger than the first, so that mean squares lag; the third is smaller, and half of its signs differ.
GRADIENTS: Sequence[Matrix] = (
    ((0.5, -0.75, 0.625), (-1.0, 0.5, 0.875)),
    ((1.25, -2.0, 1.5), (-1.75, 1.0, 1.875)),
    ((-0.5, -0.625, -1.125), (0.75, 0.5, 0.625)),
)
SHAPES = ((31, 17), (21,), (5, 63))  # 863 elements, which neither 2 nor 3 nor 4 divides
Make = Callable[[list[Tensor]], Any]  # an optimizer of these parameters


def bound(steps: int, elements: int = 1) -> float:
    """The most that two ways differ in: per step, sums of `elements` numbers at up to four places and 50 roundings."""
    return 2 * steps * (4 * elements + 50) * 16 * 2.0**-53


def three_steps(world: World, make: Make, weights: float = 1.0, gradients: float = 1.0, flat=False) -> list[Tensor]:
    """The example's parameter after each of three steps, both multiplied by something, or as a vector."""
    theta = torch.tensor(THETA, dtype=torch.float64, device=world.device) * weights
    theta = theta.flatten() if flat else theta
    optimizer, found = make([theta]), []
    for g in GRADIENTS[:3]:
        theta.grad = (theta.new_tensor(g) * gradients).view_as(theta)
        optimizer.step()
        found.append(theta.clone())
    return found


def like_the_paper(
    cases: dict[str, tuple[list[Tensor], list[Matrix]]], formula: str, source: str, most: float = 0.0
) -> Claim:
    """The claim that three steps give what the paper's formulas give, worked out with plain numbers."""
    claims = {}
    for name, (found, right) in cases.items():
        difference = largest_difference(found, [x.new_tensor(y).view_as(x) for x, y in zip(found, right, strict=True)])
        claims[name] = Claim("", formula, 0, difference, source=source, how="compared", absolute=most or bound(3, 6))
    what = "three steps of a 2 × 3 matrix: largest difference from the paper's formulas, worked out by hand"
    return fold(what, claims, key=True)


def largest_difference(found: Iterable[Tensor], right: Iterable[Tensor]) -> float:
    pairs = zip(found, right, strict=True)
    # torch's maximum keeps a NaN, which Python's may lose.
    return float(torch.stack([(a - b).abs().max() for a, b in pairs if a.numel()]).max())


def different(found: Iterable[Tensor], right: Iterable[Tensor]) -> int:
    """Elements that are not equal bit by bit."""
    return sum(int((a != b).sum()) for a, b in zip(found, right, strict=True))


def parameters(world: World, shapes: Sequence[Sequence[int]], dtype=torch.float64) -> list[Tensor]:
    """Between 0.5 and 2 in size, of either sign; the same on all ranks."""
    return [draw(world, shape, 1000 + number, dtype) for number, shape in enumerate(shapes)]


def draw(world: World, shape: Sequence[int], seed: int, dtype=torch.float64) -> Tensor:
    """Between 0.5 and 2 in size, of either sign."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 0.5 + 1.5 * torch.rand(*shape, generator=generator, dtype=torch.float64)
    signs = torch.randint(2, tuple(shape), generator=generator) * 2 - 1
    return (sizes * signs).to(world.device, dtype)


def train(world: World, make: Make, shapes=SHAPES, steps: int = 5, dtype=torch.float64) -> list[Tensor]:
    """Parameters after some steps with gradients between 0.5 and 2 in size."""
    thetas = parameters(world, shapes, dtype)
    optimizer = make(thetas)
    for step in range(steps):
        for number, theta in enumerate(thetas):
            theta.grad = draw(world, theta.shape, 100 * step + number, dtype)
        optimizer.step()
    return thetas


def like_torch(world: World, ours: Make, theirs: Make, name: str, most: float, shapes=SHAPES) -> Claim:
    """The claim that five steps give what torch's optimizer gives."""
    difference = largest_difference(train(world, ours, shapes), train(world, theirs, shapes))
    return Claim(
        f"five steps: largest difference from {name}",
        "θ_ours = θ_torch",
        0,
        difference,
        source=name,
        how="compared",
        absolute=most,
        key=True,
    )


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in lists, tuples and attributes, without the parameters themselves."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one)
    elif hasattr(value, "parameters"):
        for name, one in vars(value).items():
            if name != "parameters":
                yield from tensors(one)


def held(
    world: World, make: Make, predict: Callable[[Sequence[int]], int], formula: str, source: str, shapes=SHAPES, more=0
) -> Claim:
    """The claim on the bytes of states after a step in float32: of each shape by itself, and of all together."""
    cases = {}
    for name, some in {"all": shapes, **{str(shape): [shape] for shape in shapes}}.items():
        thetas = parameters(world, some, torch.float32)
        for theta in thetas:
            theta.grad = torch.ones_like(theta)
        optimizer = make(thetas)
        optimizer.step()
        predicted = sum(map(predict, some)) + more
        cases[name] = Claim("", formula, predicted, storage_bytes(tensors(optimizer)), "B", source)
    each = ", ".join("×".join(map(str, shape)) for shape in shapes)
    return fold(f"bytes of states in float32, tensors of {each}; of each of them by itself", cases, key=True)


# ---- under ZeRO-1 ----


class Layers:
    """Between a flat shard and an optimizer of layers, which gets this rank's part of each; some parts are empty."""

    def __init__(self, shards: list[Tensor], make: Make, sizes: Sequence[int], rank: int):
        (self.shard,) = shards
        start, most = rank * self.shard.numel(), self.shard.numel()
        edges = [min(max(edge - start, 0), most) for edge in accumulate(sizes, initial=0)]
        self.ranges = [slice(low, high) for low, high in pairwise(edges)]
        self.parts = [self.shard[each] for each in self.ranges]
        self.optimizer = make(self.parts)

    def step(self) -> None:
        gradient = self.shard.grad
        assert gradient is not None
        for part, each in zip(self.parts, self.ranges, strict=True):
            part.grad = gradient[each]
        self.optimizer.step()


@dataclass(frozen=True)
class Run:
    """A training under ZeRO-1: parameters after it, the mean gradients of each step, what was sent."""

    parameters: list[Tensor]
    gradients: list[list[Tensor]]
    ledger: Ledger


def sharded(world: World, make: Make, shapes, steps: int = 3, dtype=torch.float64, layers: bool = False) -> Run:
    """Each rank has gradients of its own and steps its shard; `layers`: by way of its part of each layer."""
    module = nn.ParameterList([nn.Parameter(theta) for theta in parameters(world, shapes, dtype)])
    sizes = [each.numel() for each in module]

    def with_layers(shards: list[Tensor]) -> Layers:
        return Layers(shards, make, sizes, world.rank)

    model = Zero1(module, with_layers if layers else make)
    ledger, gradients = Ledger(), []
    for step in range(steps):
        for number, each in enumerate(module):
            drawn = draw(world, each.shape, 10_000 * (world.rank + 1) + 100 * step + number, dtype)
            # Its gradient is what was drawn, to the bit.
            (each * drawn).sum().backward()
        with ledger:
            model.synchronize()
            assert model.shard.grad is not None
        mean = all_gather(model.shard.grad).wait()
        assert mean is not None
        gradients.append([part.view_as(p) for part, p in zip(mean[: sum(sizes)].split(sizes), module, strict=True)])
        with ledger:
            model.step()
        model.zero_grad()
    return Run([each.detach() for each in module], gradients, ledger)


def unsharded(world: World, make: Make, shapes, gradients: list[list[Tensor]], dtype=torch.float64):
    """The same on one device, with the same mean gradients: parameters, and the sum of all steps' largest changes."""
    thetas, path = parameters(world, shapes, dtype), 0.0
    optimizer = make(thetas)
    for step in gradients:
        before = [theta.clone() for theta in thetas]
        for theta, gradient in zip(thetas, step, strict=True):
            theta.grad = gradient.clone()
        optimizer.step()
        path += largest_difference(thetas, before)
    return thetas, path


def on_a_flat_shard(world: World, make: Make, predict: Callable[[Sequence[int]], int], source: str) -> Claim:
    """The claim on the states of an optimizer of matrices that gets a flat shard: for a vector it saves nothing."""
    module = nn.ParameterList([nn.Parameter(theta) for theta in parameters(world, SHAPES, torch.float32)])
    model = Zero1(module, make)
    elements = sum(each.numel() for each in module)
    return Claim(
        "bytes of states on this rank under ZeRO-1, whose flat shard has neither rows nor columns",
        "w⌈Ψ/n⌉",
        predict([-(-elements // world.size)]),
        storage_bytes(tensors(model.optimizer)),
        "B",
        source,
    )


def traffic(world: World, run: Run, shapes, steps: int, norms: int, source: str, item: int = 8) -> Claim:
    """The claim on the payloads of the collectives of all steps."""
    predicted = costs.zero1_traffic([torch.Size(shape).numel() for shape in shapes], world.size, norms, item)
    cases = {
        verb: Claim("", formula, steps * each, run.ledger.payload(verb), "B", source)
        for (verb, each), formula in zip(
            predicted._asdict().items(), ("padded Ψ · w", "padded Ψ · w", "2Lw" if norms else "0"), strict=True
        )
    }
    order = ("all_reduce", "reduce_scatter", "all_gather")
    what = f"bytes of {steps} steps under ZeRO-1: all-reduces of norms; reduce-scatters, all-gathers"
    return fold(what, {verb: cases[verb] for verb in order}, key=bool(norms))


def by_element(world: World, make: Make, shapes, source: str, dtype=torch.float32) -> Claim:
    """The claim that an element-wise optimizer gives the same bits on a flat shard as on whole tensors."""
    run = sharded(world, make, shapes, dtype=dtype)
    right, _ = unsharded(world, make, shapes, run.gradients, dtype)
    what = "elements that differ after three steps under ZeRO-1 from those on one device"
    formula = "θ_sharded = θ"
    return Claim(what, formula, 0, different(run.parameters, right), "elements", source, "compared", key=True)


def by_layer(world: World, make: Callable[..., Any], source: str, item: int = 8) -> list[Claim]:
    """Claims on an optimizer that needs the norms of layers: right with one all-reduce, wrong without.

    The bound: a sum of E squares has a relative error of at most (E + 1)u in any order, so a ratio of two norms differs
    between both ways by at most 2(E + 4)u of itself, and so does each step. Twice that allows for what earlier
    differences add to later steps, and 2u of a parameter for each subtraction.
    """
    steps, largest = 3, max(torch.Size(shape).numel() for shape in SHAPES)
    run = sharded(world, lambda parts: make(parts, sharded=True), SHAPES, steps, layers=True)
    right, path = unsharded(world, make, SHAPES, run.gradients)
    size = max(float(theta.abs().max()) for theta in right) + path
    most = (2 * steps * size + 4 * (largest + 4) * path) * 2.0**-53
    claims = [
        Claim(
            "three steps under ZeRO-1, norms all-reduced: largest difference from one device",
            "θ_sharded = θ",
            0,
            largest_difference(run.parameters, right),
            source=source,
            how="compared",
            absolute=most,
            key=True,
        ),
        traffic(world, run, SHAPES, steps, 2, source, item),
        Claim(
            f"all-reduces in {steps} steps under ZeRO-1",
            "one per step",
            steps,
            run.ledger.calls("all_reduce"),
            "calls",
            source,
        ),
    ]
    what, formula = "elements that differ under ZeRO-1 where each rank takes the norm of its part alone", "≥ 1"
    if world.size == 1:
        return [*claims, Claim.needs_ranks(2, what, formula, "derived")]
    alone = sharded(world, make, SHAPES, steps, layers=True)
    wrong = different(alone.parameters, unsharded(world, make, SHAPES, alone.gradients)[0])
    return [*claims, Claim(what, formula, 1, wrong, "elements", "derived", "compared", ">=")]


def scale_invariant(world: World, make: Make, source: str) -> Claim:
    """The claim that powers of two, as factors of gradients and of weights, change not a bit of the relative step."""
    right = three_steps(world, make)
    cases = {
        "gradients · 2¹⁰": three_steps(world, make, gradients=2.0**10),
        "weights · 2⁵": [each / 2**5 for each in three_steps(world, make, weights=2.0**5)],
    }
    claims = {
        name: Claim("", "0", 0, different(found, right), "elements", source, "compared")
        for name, found in cases.items()
    }
    what = "elements that change after three steps, λ = 0 and ε = 0: gradients times 2¹⁰; weights times 2⁵, divided out"
    return fold(what, claims, key=True)
