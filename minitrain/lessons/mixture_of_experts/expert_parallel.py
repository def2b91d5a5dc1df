"""What the demo of `expert_parallel` claims: what is sent, and that no layout changes the result.

Why not to the last bit. A matrix product may add in another order when the rows around a row differ, and a gradient
is added up over ranks instead of over rows. In float64 the results are within 10⁻¹² of each other, where every number
is of the size of 1 or smaller and a sum has a few hundred terms of relative error 10⁻¹⁶. Values that only move are
provably equal: with experts that do the same to each element, a row is the same bits wherever it is computed.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from minitrain.collectives import all_to_all
from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import mixture_of_experts as costs
from minitrain.costs.communication import Traffic
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.mixture_of_experts import small
from minitrain.mixture_of_experts import ExpertChoice, GShard, NoisyTopK, Router, Switch
from minitrain.mixture_of_experts.full.expert_parallel import (
    ExpertParallel,
    ExpertParallelLayer,
    Groups,
    RouterName,
    split_data_parallel,
)
from minitrain.mixture_of_experts.full.layer import MoELayer
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import MLP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GSHARD, DERIVED, BOUND = "Lepikhin et al. 2020, §3.3.1", "derived", 1e-12
ROUTERS: dict[RouterName, type[Router]] = {
    "noisy_top_k": NoisyTopK,
    "gshard": GShard,
    "switch": Switch,
    "expert_choice": ExpertChoice,
}
SEQUENCES = (2, 3, 0, 1)  # of ranks 0, 1, 2, …, and again from the first


class Elementwise(nn.Module):
    """An expert that multiplies each element by a number of its own."""

    def __init__(self, hidden: int, generator: torch.Generator):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(hidden, generator=generator, dtype=torch.float64))

    def forward(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return x * self.scale


class Batch(NamedTuple):
    """One step's input, the same on all ranks, and where this rank's part lies.

    Attributes:
        x: All sequences.
        towards: What y's gradient is, times the number of tokens.
        first: The number of this rank's first sequence.
        mine: The number of its sequences.
    """

    x: Tensor
    towards: Tensor
    first: int
    mine: int

    def part(self, tensor: Tensor) -> Tensor:
        """This rank's sequences."""
        return tensor[self.first : self.first + self.mine]


class Result(NamedTuple):
    """What a step gives: the output and gradients of this rank's sequences, and of parameters by name."""

    y: Tensor
    dx: Tensor
    gradients: dict[str, Tensor]


def batch(world: World, hidden: int, seq: int) -> Batch:
    """Sequences for all ranks, in numbers that differ between ranks; some may have none."""
    counts = [SEQUENCES[rank % len(SEQUENCES)] for rank in range(world.size)]
    generator = torch.Generator().manual_seed(0)
    x, towards = torch.randn(2, sum(counts), seq, hidden, generator=generator, dtype=torch.float64).to(world.device)
    return Batch(x, towards, sum(counts[: world.rank]), counts[world.rank])


def make_layer(world: World, router: RouterName, experts: int, hidden: int, elementwise: bool = False) -> MoELayer:
    """A layer in float64 with numbers of the size of 1, the same on all ranks."""
    generator = torch.Generator().manual_seed(1)
    config = GPTConfig(hidden=hidden, heads=1)
    modules = [Elementwise(hidden, generator) if elementwise else MLP(config).double() for _ in range(experts)]
    layer = MoELayer(ROUTERS[router](hidden, experts), modules, "loop" if elementwise else "grouped").double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return layer.to(world.device)


def alone(layer: MoELayer, whole: Batch) -> Result:
    """A step of the whole batch on one device."""
    layer.zero_grad()
    x = whole.x.clone().requires_grad_()
    layer.router.set_position(seed=0, step=1)
    y = layer(x)
    ((y * whole.towards).sum() / whole.x[..., 0].numel() + layer.auxiliary_loss).backward()
    assert x.grad is not None
    gradients = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return Result(whole.part(y.detach()), whole.part(x.grad), gradients)


def together(world: World, model: ExpertParallel, whole: Batch) -> Result:
    """The same step of all ranks, each with its own sequences."""
    model.zero_grad()
    layer, seq = model.module, whole.x.shape[1]
    assert isinstance(layer, MoELayer)
    x = whole.part(whole.x).clone().requires_grad_()
    layer.router.set_position(seed=0, step=1, first_token=whole.first * seq)
    y = model(x)
    # The mean over the batch is the mean over ranks of this: a rank's part, times the number of ranks.
    part = (y * whole.part(whole.towards)).sum() / (len(whole.x) * seq)
    loss = world.size * (part + layer.auxiliary_loss * whole.mine / len(whole.x))
    loss.backward()
    model.synchronize()
    assert x.grad is not None
    gradients = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return Result(y.detach(), x.grad / world.size, gradients)


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest absolute difference; 0 of nothing."""
    return (found - expected).abs().max().item() if found.numel() else 0.0


def apart(found: Result, expected: Result) -> tuple[float, float]:
    """Distances of outputs and input gradients, and of the gradients of the parameters that this rank holds."""
    of_rows = max(distance(found.y, expected.y), distance(found.dx, expected.dx))
    return of_rows, max(distance(found.gradients[name], expected.gradients[name]) for name in found.gradients)


def claims(world: World, router: RouterName, experts: int, hidden: int, seq: int) -> list[Claim]:
    """All claims of the demo; see there."""
    experts = max(experts, world.size)
    whole, layer = batch(world, hidden, seq), make_layer(world, router, experts, hidden)
    expected = alone(layer, whole)
    everyone = split_data_parallel(world.size)
    divided = experts + -experts % world.size  # the small form wants equally many on each rank
    return [
        *small.claims(world, make_layer(world, "switch", divided, hidden), hidden, seq),
        *sent(world, copy.deepcopy(layer), everyone, whole),
        equal(world, layer, whole, expected),
        unmoved(world, make_layer(world, router, experts, hidden, elementwise=True), everyone, whole),
        wrong_divisor(world, layer, whole, expected),
    ]


def places_of(experts: int, ranks: int) -> list[range]:
    """Which experts each rank should hold: neighbours, and one more on the first ranks where they do not divide."""
    sizes = [experts // ranks + (rank < experts % ranks) for rank in range(ranks)]
    return [range(sum(sizes[:rank]), sum(sizes[: rank + 1])) for rank in range(ranks)]


def sent(world: World, layer: MoELayer, groups: Groups, whole: Batch) -> list[Claim]:
    """Claims on what this rank sends forward and backward, and on the rows that its experts get."""
    assert layer.routing is None
    n, rank, seq, experts = world.size, world.rank, whole.x.shape[1], layer.router.experts
    layer.router.set_position(seed=0, step=1)
    one_device = layer.router(whole.x.flatten(0, 1), groups=len(whole.x))
    held = places_of(experts, n)
    owner = {expert: holder for holder in range(n) for expert in held[holder]}
    firsts = [first * seq for first, _ in gather_objects((whole.first, whole.mine))]
    routes = [[0] * n for _ in range(n)]
    for token, expert in zip(one_device.token.tolist(), one_device.expert.tolist(), strict=True):
        home = max(holder for holder in range(n) if firsts[holder] <= token)
        routes[home][owner[expert]] += 1

    spread = ExpertParallelLayer(layer, groups, all_to_all.pairwise)
    x = whole.part(whole.x).clone().requires_grad_()
    spread.router.set_position(seed=0, step=1, first_token=whole.first * seq)
    with Ledger() as forward:
        y = spread(x)
    with Ledger() as backward:
        y.backward(whole.part(whole.towards))
    assert spread.received is not None and spread.routing is not None
    world.figure(lambda: picture(routes))

    rows = costs.all_to_all(routes, rank, whole.x.shape[-1], whole.x.element_size())
    counts = Traffic(8 * (experts - len(held[rank])), n - 1)
    there = rows.dispatch + rows.combine + counts
    back = rows.combine_backward + rows.dispatch_backward
    expected = one_device.load()[list(held[rank])].cpu()
    unlike = int((spread.received.sum(0).cpu() != expected).sum()) + (list(spread.experts) != [*map(str, held[rank])])
    on, each = "all-to-all, this rank, ", "one for each part that is not empty, ≤ 5(n−1)"
    messages = {
        way: Claim("", each, traffic.messages, ledger.messages, "messages", GSHARD)
        for way, traffic, ledger in (("forward", there, forward), ("backward", back, backward))
    }
    return [
        Claim(
            on + "forward: bytes",
            "(out + in) · h · w + 8 · (E − E_r)",
            there.bytes,
            forward.sent,
            "B",
            GSHARD,
            key=True,
        ),
        Claim(on + "backward: bytes", "(out + in) · h · w", back.bytes, backward.sent, "B", GSHARD),
        fold(on + "forward and backward: messages", messages),
        Claim("experts here that get other rows than on one device", "none", 0, unlike, "1", DERIVED, "compared"),
    ]


def equal(world: World, layer: MoELayer, whole: Batch, expected: Result) -> Claim:
    """The claim that outputs and gradients are those of one device, for every ep that divides the ranks."""
    formula, cases = "10⁻¹², float64, for each ep that divides n", {}
    for ep in (count for count in range(1, world.size + 1) if world.size % count == 0):
        model = ExpertParallel(copy.deepcopy(layer), split_data_parallel(ep))
        distances = apart(together(world, model, whole), expected)
        for of, measured in zip(
            ("outputs and their inputs' gradients", "parameters' gradients"), distances, strict=True
        ):
            cases[f"ep = {ep}: {of}"] = Claim("", formula, BOUND, measured, "1", DERIVED, "compared", "<=")
        if ep == world.size:
            with world.timed(f"a step with experts on {ep} ranks, forward, backward, synchronize"):
                together(world, model, whole)
    return fold("distance of outputs and all gradients from one device, any ep", cases, key=True)


def unmoved(world: World, layer: MoELayer, groups: Groups, whole: Batch) -> Claim:
    """The claim that rows come back as they would be on one device, bit by bit, where experts take each element alone.

    The weights must be the same bits too, and those come out of a product, the router's. So here both layers are given
    the same routing, cut in parts.
    """
    layer.eval()
    x, seq = whole.x, whole.x.shape[1]
    routing = layer.router(x.flatten(0, 1), groups=len(x))
    rows = layer.compute_experts(layer.dispatch(x.flatten(0, 1), routing), routing)
    mine = (routing.token >= whole.first * seq) & (routing.token < (whole.first + whole.mine) * seq)
    spread = ExpertParallelLayer(layer, groups, all_to_all.pairwise)
    lists = {name: getattr(routing, name)[mine] for name in ("expert", "weight", "position_in_expert")}
    part = replace(routing, token=routing.token[mine] - whole.first * seq, **lists, tokens=whole.mine * seq)
    spread.announce(part.load())
    found = spread.compute_experts(spread.dispatch(whole.part(x).flatten(0, 1), part), part)
    unlike = int((found != rows[mine]).sum())
    what = "elements of experts' outputs that differ from one device's, if an expert takes each by itself"
    return Claim(what, "the same bits", 0, unlike, "1", DERIVED, "compared")


def wrong_divisor(world: World, layer: MoELayer, whole: Batch, expected: Result) -> Claim:
    """The claim that a mean over replicas instead of over the batch makes gradients of experts ep times too large."""
    ep = world.size
    model = ExpertParallel(copy.deepcopy(layer), split_data_parallel(ep))
    model.divisor = world.size // ep
    found = together(world, model, whole).gradients
    ratios = [
        (found[name].norm() / expected.gradients[name].norm()).item()
        for name in model.own_experts
        if expected.gradients[name].norm() > 0
    ]
    worst = max(ratios, key=lambda ratio: abs(ratio - ep)) if ratios else float(ep)
    what = "gradients of experts, in parts of the right ones, if divided by the number of replicas"
    return Claim(what, "ep", ep, worst, "1", DERIVED, "compared", tolerance=1e-12, key=True)


def picture(routes: list[list[int]]) -> Figure:
    """A table of the rows that go from each rank to each, darker for more."""
    from matplotlib.figure import Figure

    n, most = len(routes), max(max(row) for row in routes) or 1
    figure = Figure(figsize=(1.5 + 0.8 * n, 1.2 + 0.6 * n), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(routes, cmap="Blues", vmin=0, vmax=most)
    for source, row in enumerate(routes):
        for to, count in enumerate(row):
            colour = "white" if count > most / 2 else "black"
            axes.text(to, source, f"{count}", ha="center", va="center", color=colour)
    axes.set(xticks=range(n), yticks=range(n), xlabel="experts of rank", ylabel="tokens of rank")
    axes.set_title("rows from each rank to each; on the diagonal they stay", fontsize=10)
    return figure


def demo(world: World, router: RouterName = "switch", experts: int = 6, hidden: int = 10, seq: int = 15) -> list[Claim]:
    """Spreads experts over ranks; the table shows what is sent, and that one device computes the same.

    Args:
        router: The rule by which experts are chosen.
        experts: Number of experts; raised to the number of ranks where it is less.
        hidden: Width of a token.
        seq: Tokens in a sequence; ranks have 2, 3, 0 and 1 sequences.
    """
    return claims(world, router, experts, hidden, seq)
