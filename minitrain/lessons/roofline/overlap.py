"""The lesson of `minitrain.roofline.overlap`: three ways in which communication meets products, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.comm.timeline import Span, draw
from minitrain.costs import communication, data_parallel
from minitrain.costs import roofline as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.roofline.machine import VirtualMachine
from minitrain.roofline import overlap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Bytes and operations in a virtual second. A power of two, and the operations are one times 8n: then no time rounds,
# and the clock shows the formula to the last digit. The width is 16n, so that a ring's chunks are equal.
LINK = 2.0**14
BOOK = "Austin et al. 2025"
ITEM = 8  # float64, in which sums of whole numbers do not round


@dataclass(frozen=True)
class Run:
    """One call on the virtual machine: its result, the machine, and bytes sent by this rank."""

    result: Sequence[Tensor]
    machine: VirtualMachine
    sent: int

    @property
    def time(self) -> float:
        return self.machine.compute.now


class Trial:
    """Whole numbers for chains of layers, the same on all ranks but for the tokens, and the same at each run."""

    def __init__(self, world: World, layers: int):
        self.world, self.layers = world, layers
        self.ranks, self.width = world.size, 16 * world.size
        self.speed = 8 * world.size * LINK

    def numbers(self, seed: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-1, 2, shape, generator=generator).double().to(self.world.device)

    def weights(self) -> list[Tensor]:
        return [self.numbers(layer, self.width, self.width) for layer in range(self.layers)]

    def tokens(self, rows: int, seed: int = 100) -> Tensor:
        """Those of all ranks, one after the other."""
        return self.numbers(seed, self.ranks * rows, self.width)

    def run(self, call: Callable[[VirtualMachine], Sequence[Tensor]]) -> Run:
        machine = VirtualMachine(self.speed, LINK)
        with Ledger() as ledger, machine:
            result = call(machine)
        return Run(result, machine, ledger.sent)

    def backward(self, rows: int, hide: bool = True) -> Run:
        """Data parallelism, with so many tokens on each rank."""
        weights = self.weights()
        inputs = [self.tokens(rows).chunk(self.ranks)[self.world.rank]]
        for weight in weights[:-1]:
            inputs.append(inputs[-1] @ weight)
        gradient = self.tokens(rows, 200).chunk(self.ranks)[self.world.rank]
        return self.run(lambda machine: overlap.backward(inputs, weights, gradient, machine.all_reduce, hide))

    def one_device_backward(self, rows: int) -> list[Tensor]:
        """The same gradients by autograd, from all tokens at once."""
        weights = [weight.requires_grad_() for weight in self.weights()]
        self.chain(self.tokens(rows), weights).backward(self.tokens(rows, 200))
        return [weight.grad for weight in weights if weight.grad is not None]

    def chain(self, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        for weight in weights:
            x = x @ weight
        return x

    def gathered(self, rows: int, hide: bool = True) -> Run:
        """ZeRO-3's forward."""
        shards = [weight.chunk(self.ranks)[self.world.rank].contiguous() for weight in self.weights()]
        x = self.tokens(rows).chunk(self.ranks)[self.world.rank]
        return self.run(lambda machine: [overlap.gathered(x, shards, machine.all_gather, hide)])

    def one_device_gathered(self, rows: int) -> list[Tensor]:
        return [self.chain(self.tokens(rows).chunk(self.ranks)[self.world.rank], self.weights())]

    def split(self, rows: int) -> Run:
        """Tensor parallelism's forward; each layer twice, as attention (2h inside) and MLP (4h) do it."""
        columns = [a.chunk(self.ranks, dim=1)[self.world.rank].contiguous() for a, _ in self.pairs()]
        of_rows = [b.chunk(self.ranks)[self.world.rank].contiguous() for _, b in self.pairs()]
        x = self.tokens(rows)[:rows]
        return self.run(lambda machine: [overlap.split(x, columns, of_rows, machine.all_reduce)])

    def one_device_split(self, rows: int) -> list[Tensor]:
        return [self.chain(self.tokens(rows)[:rows], [each for pair in self.pairs() for each in pair])]

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """8h² and 16h² weights: those of attention's projections and of the MLP, in a transformer's layer."""
        inner = (2 * self.width, 4 * self.width)
        return [(self.numbers(300 + w, self.width, w), self.numbers(400 + w, w, self.width)) for w in inner]


def demo(world: World, layers: int = 3) -> list[Claim]:
    """Runs a chain of layers in three ways on a virtual machine; the table shows what hides behind products.

    Args:
        layers: Matrices in the chain.
    """
    trial = Trial(world, layers)
    least = 32 * max(1, world.size - 1)  # tokens at which both take equally long; four times and a quarter of them, too
    sizes = (least // 4, least, 4 * least)
    backward = {rows: {hide: trial.backward(rows, hide) for hide in (True, False)} for rows in sizes}
    gathered = {rows: {hide: trial.gathered(rows, hide) for hide in (True, False)} for rows in sizes}
    split = {rows: trial.split(rows) for rows in sizes}
    world.figure(lambda: picture(spans_of(backward[least], gathered[least], split[least])))
    return [
        same(trial, least, backward[least], gathered[least], split[least]),
        sent(trial, least, backward[least][True], gathered[least][True], split[least]),
        *backward_times(trial, backward),
        threshold(trial),
        *gathered_times(trial, gathered),
        *split_times(trial, split),
    ]


def same(trial: Trial, rows: int, backward: dict[bool, Run], gathered: dict[bool, Run], split: Run) -> Claim:
    """The claim that all five runs give one device's numbers; sums of whole numbers do not round."""
    cases = {}
    for name, run, right in (
        ("gradients, overlapped", backward[True], trial.one_device_backward(rows)),
        ("gradients, waited for", backward[False], trial.one_device_backward(rows)),
        ("ZeRO-3's output, prefetched", gathered[True], trial.one_device_gathered(rows)),
        ("ZeRO-3's output, waited for", gathered[False], trial.one_device_gathered(rows)),
        ("tensor parallelism's output", split, trial.one_device_split(rows)),
    ):
        wrong = sum(int((a != b).sum()) for a, b in zip(run.result, right, strict=True))
        cases[name] = Claim("", "0", 0, wrong, source="derived", how="compared")
    return fold("elements that differ from one device's: gradients and outputs, hidden or waited for", cases, key=True)


def sent(trial: Trial, rows: int, backward: Run, gathered: Run, split: Run) -> Claim:
    """The claim on bytes sent by this rank."""
    n, rank, elements = trial.ranks, trial.world.rank, trial.width**2
    gradient = communication.ring_all_reduce(elements, ITEM, n, rank).bytes
    weight = communication.ring_all_gather(elements, ITEM, n, rank).bytes
    output = communication.ring_all_reduce(rows * trial.width, ITEM, n, rank).bytes
    cases = {
        "gradients": Claim(
            "", "2(n−1)/n · w·K·D²", trial.layers * gradient, backward.sent, "B", "Patarasuk & Yuan 2009"
        ),
        "ZeRO-3's weights": Claim("", "(n−1)/n · w·K·D²", trial.layers * weight, gathered.sent, "B", BOOK),
        "outputs": Claim("", "2 · 2(n−1)/n · w·T·D", 2 * output, split.sent, "B", BOOK),
    }
    return fold("bytes sent by this rank: K gradients; ZeRO-3's weights, tensor parallelism's outputs", cases, key=True)


Runs = dict[int, dict[bool, Run]]


def names(sizes: Sequence[int]) -> dict[int, str]:
    """The names of the three numbers of tokens."""
    words = ("a quarter of the tokens", "as many tokens as hide it", "four times as many")
    return dict(zip(sizes, words, strict=True))


def parts(trial: Trial, rows: int) -> tuple[list[float], list[float]]:
    """Seconds of each layer's two products in backward, and of its all-reduce."""
    products = 2 * costs.matrix_product(rows, trial.width, trial.width, ITEM).flops / trial.speed
    reduce = communication.ring_all_reduce_time(ITEM * trial.width**2, trial.ranks, 0, 1 / LINK)
    return [products] * trial.layers, [reduce] * trial.layers


def backward_times(trial: Trial, runs: Runs) -> list[Claim]:
    """Claims on data parallelism's backward at three sizes: with overlap, without, and that it keeps to both bounds."""
    hidden, waited, least, most = {}, {}, {}, {}
    for rows, name in names(list(runs)).items():
        products, reduces = parts(trial, rows)
        overlapped, alone = (runs[rows][hide].time for hide in (True, False))
        predicted = data_parallel.step_time(0, products, reduces)
        hidden[name] = timed("max over k of (b₁ + … + bₖ + cₖ + … + c_K)", predicted, overlapped, "Johnson 1954, §2")
        predicted = data_parallel.step_time(0, products, reduces, overlap=False)
        waited[name] = timed("Σbₖ + Σcₖ", predicted, alone, f"{BOOK}, roofline")
        lower, upper = costs.bounds(sum(products), sum(reduces))
        least[name] = timed("max(Σbₖ, Σcₖ)", lower, overlapped, f"{BOOK}, roofline", ">=")
        most[name] = timed("Σbₖ + Σcₖ", upper, overlapped, f"{BOOK}, roofline", "<=")
    return [
        fold("time of backward, all-reduces overlapped: three numbers of tokens", hidden, key=True),
        fold("time of backward, each all-reduce waited for: three numbers of tokens", waited),
        fold("time of backward, overlapped: not below the lower bound", least),
        fold("time of backward, overlapped: not above the upper bound", most),
    ]


def timed(formula: str, predicted: float, measured: float, source: str, relation: str = "=") -> Claim:
    """A claim on virtual seconds."""
    return Claim("", formula, predicted, measured, "virtual s", source, "virtual clock", relation)  # type: ignore[arg-type]


def threshold(trial: Trial) -> Claim:
    """The claim on the fewest tokens with which one layer computes as long as it sends, found by bisection."""
    what = "fewest tokens on a rank with which products take as long as the all-reduce; as ZeRO-3's gather"
    formula = "(n−1)/n · w/2 · F/W"
    if trial.ranks == 1:
        return Claim.needs_ranks(2, what, formula, BOOK, key=True)
    one, cases = Trial(trial.world, layers=1), {}
    for name, run, predict in (
        ("data parallelism", one.backward, costs.tokens_to_hide_gradients),
        ("ZeRO-3", one.gathered, costs.tokens_to_hide_gathers),
    ):
        low, high = 0, 64 * trial.ranks  # too few, and enough
        while high - low > 1:
            middle = (low + high) // 2
            machine = run(middle).machine
            low, high = (low, middle) if machine.computing >= machine.sending else (middle, high)
        predicted = predict(trial.ranks, trial.speed, LINK, ITEM)
        cases[name] = Claim("", formula, predicted, high, "tokens", f"{BOOK}, training", "virtual clock")
    return fold(what, cases, key=True)


def gathered_times(trial: Trial, runs: Runs) -> list[Claim]:
    """Claims on ZeRO-3's forward at three sizes: one gather is waited for, the others hide, or the products do."""
    hidden, waited = {}, {}
    gather = communication.ring_reduce_scatter_time(ITEM * trial.width**2, trial.ranks, 0, 1 / LINK)
    for rows, name in names(list(runs)).items():
        product = costs.matrix_product(rows, trial.width, trial.width, ITEM).flops / trial.speed
        each = [product] * trial.layers, [gather] * trial.layers
        formula, source = "g₁ + Σ max(fₖ, gₖ₊₁) + f_K", "Zhao et al. 2023, §3.3"
        hidden[name] = timed(formula, costs.prefetched_time(*each), runs[rows][True].time, source)
        waited[name] = timed("Σfₖ + Σgₖ", costs.bounds(*map(sum, each)).upper, runs[rows][False].time, source)
    return [
        fold("time of ZeRO-3's forward, gathers prefetched: three numbers of tokens", hidden, key=True),
        fold("time of ZeRO-3's forward, each gather waited for: three numbers of tokens", waited),
    ]


def split_times(trial: Trial, runs: dict[int, Run]) -> list[Claim]:
    """Claims on a tensor-parallel layer: the sum of both times, and their ratio, which the tokens do not change."""
    times, ratios, n = {}, {}, trial.ranks
    most = costs.most_tensor_ranks(trial.width, trial.speed, LINK, item=ITEM)
    for rows, name in names(list(runs)).items():
        products = costs.forward_flops(1, rows, trial.width, 1, 0).blocks / n / trial.speed
        reduces = 2 * communication.ring_all_reduce_time(ITEM * rows * trial.width, n, 0, 1 / LINK)
        machine = runs[rows].machine
        times[name] = timed("Σbₖ + Σcₖ", costs.bounds(products, reduces).upper, runs[rows].time, BOOK)
        ratio = machine.sending / machine.computing
        ratios[name] = Claim("", "(t−1) / (6h/w · W/F)", (n - 1) / (most - 1), ratio, "1", BOOK, "virtual clock")
    return [
        fold("time of a tensor-parallel layer, nothing hidden: three numbers of tokens", times, key=True),
        fold("communication over products in a tensor-parallel layer, whatever the tokens", ratios),
    ]


def spans_of(backward: dict[bool, Run], gathered: dict[bool, Run], split: Run) -> dict[str, list[Span]]:
    """The spans of five runs by name."""
    runs = {
        "gradients, waited for": backward[False],
        "gradients, overlapped": backward[True],
        "ZeRO-3, waited for": gathered[False],
        "ZeRO-3, prefetched": gathered[True],
        "tensor parallelism": split,
    }
    return {name: run.machine.spans() for name, run in runs.items()}


def picture(runs: dict[str, list[Span]]) -> Figure:
    """Rank 0's runs, one below the other: products above, network below."""
    together = []
    for number, (name, spans) in enumerate(runs.items(), 1):
        for span in spans:
            part = "products" if span.lane == "compute" else "sent"  # in the order of the alphabet, as rows are drawn
            lane = f"{number} {name}: {part}"
            together.append(Span(span.rank, lane, span.kind, span.label, span.start, span.end))
    return draw(together, "what hides behind products", "virtual seconds")
