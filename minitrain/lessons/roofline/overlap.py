"""The lesson of `minitrain.roofline.overlap`: three ways in which communication meets products, on a virtual clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.timeline import Span
from minitrain.costs import communication, data_parallel
from minitrain.costs import roofline as costs
from minitrain.lessons.pictures import panels
from minitrain.lessons.roofline.machine import VirtualMachine
from minitrain.lessons.rows import Claim, Rows
from minitrain.roofline import overlap

# Bytes and operations in a virtual second. A power of two, and the operations are one times 8n: then no time rounds,
# and the clock shows the formula to the last digit. The width is 16n, so that a ring's chunks are equal.
LINK = 2.0**14
BOOK = "Austin et al. 2025"
SAME = "elements that differ from one device's: gradients and outputs, hidden or waited for"
ITEM = 8  # float64, in which sums of whole numbers do not round


@dataclass(frozen=True)
class Run:
    """One call on the virtual machine."""

    result: Sequence[Tensor]
    machine: VirtualMachine

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
        with machine:
            result = call(machine)
        return Run(result, machine)

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
        """Forward with sharded weights (ZeRO-3)."""
        shards = [weight.chunk(self.ranks)[self.world.rank].contiguous() for weight in self.weights()]
        x = self.tokens(rows).chunk(self.ranks)[self.world.rank]
        return self.run(lambda machine: [overlap.gathered(x, shards, machine.all_gather, hide)])

    def one_device_gathered(self, rows: int) -> list[Tensor]:
        return [self.chain(self.tokens(rows).chunk(self.ranks)[self.world.rank], self.weights())]

    def split(self, rows: int) -> Run:
        """Forward of split layers (tensor parallelism); each layer twice, as attention (2h inside) and MLP (4h)."""
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


def demo(world: World) -> list[Claim]:
    """Runs a chain of layers in three ways on a virtual machine; the table shows what hides behind products."""
    trial, rows = Trial(world, 3), Rows(BOOK)
    least = 32 * max(1, world.size - 1)  # tokens at which both take equally long; four times and a quarter of them, too
    backward = {hide: trial.backward(least, hide) for hide in (True, False)}
    gathered, split = {hide: trial.gathered(least, hide) for hide in (True, False)}, trial.split(least)
    world.figure(lambda: panels.runs(spans_of(backward, gathered, split), "What hides behind products"))
    for name, runs, right in (
        ("gradients", backward, trial.one_device_backward(least)),
        ("sharded weights", gathered, trial.one_device_gathered(least)),
    ):
        for hide, run in runs.items():
            rows.equal(SAME, run.result, right, case=f"{name}, {'hidden' if hide else 'waited for'}")
    rows.equal(SAME, split.result, trial.one_device_split(least), case="split layers")
    for tokens in (least // 4, least, 4 * least):
        times(rows, trial, tokens)
    threshold(rows, trial)
    return rows.claims()


def times(rows: Rows, trial: Trial, tokens: int) -> None:
    """Claim the times of all three ways with so many tokens."""
    n, layers, case = trial.ranks, trial.layers, f"{tokens} tokens"
    product = costs.matrix_product(tokens, trial.width, trial.width, ITEM).flops / trial.speed
    gather = communication.ring_reduce_scatter_time(ITEM * trial.width**2, n, 0, 1 / LINK)
    # In backward a layer has two products, and an all-reduce is two times a gather.
    predicted = data_parallel.step_time(0, [2 * product] * layers, [2 * gather] * layers)
    formula, found = "max over k of (b₁ + … + bₖ + cₖ + … + c_K)", trial.backward(tokens).time
    what = "time of backward, all-reduces overlapped: three numbers of tokens"
    rows.time(what, formula, predicted, found, "Johnson 1954, §2", case=case)
    predicted = costs.prefetched_time([product] * layers, [gather] * layers)
    what = "time of forward with sharded weights, gathers prefetched: three numbers of tokens"
    found = trial.gathered(tokens).time
    rows.time(what, "g₁ + Σ max(fₖ, gₖ₊₁) + f_K", predicted, found, "Zhao et al. 2023, §3.3", case=case)
    products = costs.forward_flops(1, tokens, trial.width, 1, 0).blocks / n / trial.speed
    reduces = 2 * communication.ring_all_reduce_time(ITEM * tokens * trial.width, n, 0, 1 / LINK)
    what = "time of a split layer, nothing hidden: three numbers of tokens"
    rows.time(what, "Σbₖ + Σcₖ", costs.bounds(products, reduces).upper, trial.split(tokens).time, case=case)


def threshold(rows: Rows, trial: Trial) -> None:
    """Claim the fewest tokens with which one layer computes as long as it sends, found by bisection."""
    what = "fewest tokens on a rank with which products take as long as the all-reduce; as the gather of a weight"
    formula = "(n−1)/n · w/2 · F/W"
    if trial.ranks == 1:
        rows.needs(2, what, formula)
        return
    one = Trial(trial.world, layers=1)
    for case, run, predict in (
        ("all-reduce", one.backward, costs.tokens_to_hide_gradients),
        ("gather", one.gathered, costs.tokens_to_hide_gathers),
    ):

        def long_enough(tokens: int, run: Callable[[int], Run] = run) -> bool:
            machine = run(tokens).machine
            return machine.computing >= machine.sending

        found = bisect_left(range(64 * trial.ranks), True, lo=1, key=long_enough)
        predicted = predict(trial.ranks, trial.speed, LINK, ITEM)
        rows.add(what, formula, predicted, found, "tokens", f"{BOOK}, training", case=case, how="virtual clock")


def spans_of(backward: dict[bool, Run], gathered: dict[bool, Run], split: Run) -> dict[str, list[Span]]:
    """The spans of five runs by name."""
    runs = {
        "gradients, waited for": backward[False],
        "gradients, overlapped": backward[True],
        "sharded weights, waited for": gathered[False],
        "sharded weights, prefetched": gathered[True],
        "split layers": split,
    }
    return {name: run.machine.spans() for name, run in runs.items()}
