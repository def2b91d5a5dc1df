"""The demo of `accumulation`: many ways to learn from one batch, in whole numbers so that nothing rounds.

Weights, inputs and targets are small whole numbers in float64, and a rank's share of the batch is a power of two. Sums,
products and divisions are then exact, whatever their order, so that two ways of learning from one batch must give the
same gradients to the last bit. Only where the number of ranks is no power of two does their mean round.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, SavedActivations, World
from minitrain.comm.control import gather_objects
from minitrain.data_parallel import accumulation, overlapped
from minitrain.data_parallel.full.accumulation import accumulate, adjust_batch_norm, scaled_learning_rate, warmed_up
from minitrain.data_parallel.full.overlapped import DataParallel
from minitrain.data_parallel.full.replica import Replica
from minitrain.lessons.claims import Claim, fold

GOYAL, LI = "Goyal et al. 2017", "Li et al. 2020"
Pair = tuple[Tensor, Tensor]
Accumulate = Callable[..., Tensor]


def whole_numbers(world: World, *shape: int, seed: int, most: int = 3) -> Tensor:
    """Whole numbers from −most to most, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=generator, dtype=torch.float64).to(world.device)


def network(world: World) -> nn.Sequential:
    """Two layers with whole-numbered weights, the same on every rank."""
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double().to(world.device)
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(whole_numbers(world, *parameter.shape, seed=seed, most=2))
    return module


def gradient(parameter: Tensor) -> Tensor:
    """Its gradient, which must exist."""
    assert parameter.grad is not None
    return parameter.grad


def squared_errors(module: nn.Module, pair: Pair) -> Tensor:
    """The sum of the losses of a micro-batch."""
    inputs, targets = pair
    return (module(inputs) - targets).square().sum()


def samples(pair: Pair) -> int:
    """The count of a micro-batch."""
    return len(pair[0])


def uneven(micro_batches: int) -> list[int]:
    """Sizes 1, 3, 1, 3, …: two on average."""
    return [1, 3] * (micro_batches // 2) or [2]


def small_form(world: World, micro_batches: int) -> tuple[dict[str, Claim], dict[str, Claim], list[Claim]]:
    """Claims on the small form: one device's gradients from equal micro-batches; what is sent, and what forward keeps.

    Returns:
        The claims on gradients and on losses by their number of micro-batches, and the others.
    """
    n, each = world.size, 2 * micro_batches
    whole = whole_numbers(world, n * each, 4, seed=10), whole_numbers(world, n * each, 3, seed=11)
    reference = network(world)
    loss = squared_errors(reference, whole)
    loss.backward()
    mine = [part.split(each)[world.rank] for part in whole]
    same, losses, sent, keeps = {}, {}, {}, {}
    for pieces in dict.fromkeys((micro_batches, 1, 2)):
        cuts = (part.split(-(-each // pieces)) for part in mine)
        pairs = [(x.clone(), y.clone()) for x, y in zip(*cuts, strict=True)]
        kept = []

        def mean_loss(module: nn.Module, pair: Pair, kept: list[int] = kept) -> Tensor:
            with SavedActivations(module) as saved:
                loss = squared_errors(module, pair) / samples(pair)
            kept.append(saved.bytes)
            return loss

        model = overlapped.DataParallel(network(world))
        with Ledger() as ledger:
            mean = accumulation.accumulate(model, pairs, mean_loss)
        case = f"small form, {pieces} micro-batches"
        same[case] = _same(world, model.module, reference, whole, [each] * n)
        losses[case] = _loss(loss, n * each, mean)
        calls = ledger.calls("all_reduce")
        sent[case] = Claim("", "B + 1", 2, calls, "1", f"{LI}, §3.2.4")
        # Inputs of both layers, and the errors: 4 + 8 + 3 elements of 8 bytes for each sample.
        keeps[case] = Claim("", "8 · 15 · b/A", 8 * 15 * each / pieces, max(kept), "B", "derived")
    form = "small form: "
    return (
        same,
        losses,
        [
            fold(f"{form}all-reduces in a step, whatever A is: one bucket, and the loss", sent, key=True),
            fold(f"{form}most bytes that forward keeps, b samples", keeps, key=True),
        ],
    )


def _bound(n: int) -> float:
    """Rounding 1/n, multiplying by it, n−1 additions, and here one division: n+2 roundings of at most eps/2 each."""
    rounding = 0.0 if n & (n - 1) == 0 else (n + 2) * torch.finfo(torch.float64).eps / 2
    return rounding / (1 - rounding)


def one_batch(world: World, wrap: type[Replica], accumulate: Accumulate, micro_batches: int) -> list[Claim]:
    """Claims that ranks and micro-batches, equal or not, give the gradients of one device, and the mean of its losses.

    Those of the small form are among them.
    """
    n, each = world.size, 2 * micro_batches
    inputs = whole_numbers(world, n * each, 4, seed=10)
    targets = whole_numbers(world, n * each, 3, seed=11)
    reference = network(world)
    loss = squared_errors(reference, (inputs, targets))
    loss.backward()
    # One sample moves from the last rank to the first, so that ranks have different numbers too.
    shares = [each + (rank == 0) - (rank == n - 1) for rank in range(n)]
    ways = {
        "one batch on each rank": ([each] * n, [each]),
        f"{micro_batches} micro-batches on each rank": ([each] * n, [2] * micro_batches),
        "micro-batches and ranks of different sizes": (shares, uneven(micro_batches)),
    }
    same, losses, small = small_form(world, micro_batches)
    sent = {}
    for what, (per_rank, cuts) in ways.items():
        model = wrap(network(world))
        mine = [part.split(per_rank)[world.rank] for part in (inputs, targets)]
        sizes = [*cuts[:-1], per_rank[world.rank] - sum(cuts[:-1])]
        pairs = list(zip(*(part.split(sizes) for part in mine), strict=True))
        with Ledger() as ledger:
            mean = accumulate(model, pairs, squared_errors, samples)
        losses[what] = _loss(loss, n * each, mean)
        same[what] = _same(world, model.module, reference, (inputs, targets), per_rank)
        sent[what] = Claim("", "B + 2", 3, ledger.calls("all_reduce"), "1", "derived")
    return [
        fold("gradients' distance from one device with the whole batch", same, key=True),
        *small,
        fold("mean loss that accumulate returns, of all micro-batches of all ranks", losses),
        fold("all-reduces in a step: one bucket, the loss, and before them the count", sent),
    ]


def _loss(loss: Tensor, total: int, mean: Tensor) -> Claim:
    """The claim that the mean loss is one device's."""
    predicted, how = loss.item() / total, "compared"
    return Claim("", "Σ losses / T", predicted, mean.item(), "1", f"{GOYAL}, §3", how, tolerance=1e-12)


def _same(world: World, module: nn.Module, reference: nn.Module, whole: Pair, per_rank: list[int]) -> Claim:
    """The claim that a module has the gradients of a reference that took the whole batch."""
    distance, source = _distance(world, module, reference, whole, per_rank), f"{GOYAL}, §3; Higham 2002, §4.2"
    formula = "γₙ₊₂ Σ|gᵣ|; 0 where n is a power of 2"
    return Claim("", formula, _bound(world.size), distance, "1", source, "compared", "<=")


def _distance(world: World, module: nn.Module, reference: nn.Module, whole: Pair, per_rank: list[int]) -> float:
    """The largest distance of two gradients, in Σ|gᵣ| over the ranks' parts, each computed on this one device."""
    sizes = [torch.zeros_like(parameter) for parameter in reference.parameters()]
    for pair in zip(*(part.split(per_rank) for part in whole), strict=True):
        alone = network(world)
        squared_errors(alone, pair).backward()
        for size, parameter in zip(sizes, alone.parameters(), strict=True):
            size += gradient(parameter).abs()
    total, worst = len(whole[0]), 0.0
    for found, expected, size in zip(module.parameters(), reference.parameters(), sizes, strict=True):
        error = (gradient(found) - gradient(expected) / total).abs() / (size / total)
        worst = max(worst, error.nan_to_num(nan=0.0).max().item())  # 0/0 where every part's gradient is 0
    return worst


class Rows(nn.Module):
    """A number for each token. The loss is their sum, so each one's gradient is what its token weighs in the step."""

    def __init__(self, tokens: int):
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(tokens, dtype=torch.float64))

    def forward(self, places: Tensor) -> Tensor:
        return self.rows[places]


def token_weights(world: World, wrap: type[Replica], accumulate: Accumulate, micro_batches: int) -> list[Claim]:
    """Claims on what a token weighs: the same for all, and not so with a mean of means, or if divided by n twice."""
    sizes = uneven(micro_batches)
    each = sum(sizes)
    total = world.size * each
    places = torch.arange(total, device=world.device).split(each)[world.rank].split(sizes)

    right, wrong, short = (Rows(total).to(world.device) for _ in range(3))
    accumulate(wrap(right), places, lambda module, part: module(part).sum(), len)
    model = wrap(wrong)
    with model.no_sync():
        for part in places:
            (model(part).mean() / len(places)).backward()  # the mean of the micro-batches' means
    model.synchronize()

    model = wrap(short)
    with model.no_sync():
        for part in places:
            (model(part).sum() / total).backward()  # of all tokens; synchronize() then divides by n once more
    model.synchronize()

    weights, others, once_more = (gradient(module.rows) for module in (right, wrong, short))
    lost = float((weights - once_more).norm() / weights.norm())
    source, how = f"{GOYAL}, §3", "compared"
    ends = {
        "lightest token": Claim("", "1/T", 1 / total, float(weights.min()), "1", source, how),
        "heaviest token": Claim("", "1/T", 1 / total, float(weights.max()), "1", source, how),
    }
    spread = "heaviest token over lightest, mean of means, micro-batches of 1 and 3 tokens"
    ratio, found = max(sizes) / min(sizes), float(others.max() / others.min())
    length = "part of the gradient that is lost where it is divided by n once too often"
    return [
        fold("weight of the lightest token and of the heaviest, Σ losses / Σ tokens", ends),
        Claim(spread, "t_max / t_min", ratio, found, "1", "derived", how, tolerance=1e-12, key=True),
        Claim(length, "1 − 1/n", 1 - 1 / world.size, lost, "1", "derived", how, absolute=1e-12),
    ]


def linear_scaling(world: World, wrap: type[Replica], scaled: Callable[[float, int, int], float]) -> list[Claim]:
    """Claims on small steps and a large one in their place, and on the warm-up between the two.

    Two small steps and one twice as large drift apart with the square of the learning rate.

    For a quadratic loss the first gives w − η g₁ − η g₂ + η² H₂ g₁, the second w − 2η (g₁ + g₂)/2: they differ by
    η² H₂ g₁, g and H being gradients and Hessian of the two batches. Half the rate leaves a quarter.
    """

    def drift(rate: float) -> float:
        inputs = whole_numbers(world, 2, world.size, 4, 4, seed=20)[:, world.rank]  # [step, sample, feature]
        targets = whole_numbers(world, 2, world.size, 4, 1, seed=21)[:, world.rank]
        layers = [nn.Linear(4, 1, bias=False).double().to(world.device) for _ in range(2)]
        for layer in layers:
            nn.init.ones_(layer.weight)
        small, large = (wrap(layer) for layer in layers)
        optimizer = torch.optim.SGD(small.parameters(), rate)
        for pair in zip(inputs, targets, strict=True):
            optimizer.zero_grad()
            (squared_errors(small, pair) / 4).backward()
            small.synchronize()
            optimizer.step()
        optimizer = torch.optim.SGD(large.parameters(), scaled(rate, 8, 4))
        (squared_errors(large, (inputs.flatten(0, 1), targets.flatten(0, 1))) / 8).backward()
        large.synchronize()
        optimizer.step()
        return (layers[0].weight - layers[1].weight).abs().max().item()

    return [
        Claim(
            "drift of 2 steps of η from 1 step of 2η on twice the batch, over that with η/2",
            "4, from η² H g",
            4,
            drift(2**-8) / drift(2**-9),
            "1",
            "derived",
            "compared",
            tolerance=0.0 if world.size & (world.size - 1) == 0 else 1e-9,
            key=True,
        ),
        constant_gradient(world, wrap, scaled),
        warm_up(),
    ]


def constant_gradient(world: World, wrap: type[Replica], scaled: Callable[[float, int, int], float]) -> Claim:
    """The claim on how far one step of s·η falls short of four of η, where the gradient does not change on the way.

    The loss is linear in the weights, so that its gradient is the batch's own, wherever the weights are.
    """
    batches = whole_numbers(world, 4, world.size, 4, seed=22)[:, world.rank].abs() + 1  # [step, feature]
    rate, cases = 2**-8, {}
    for s in (1, 2, 4, 8):
        layers = [nn.Linear(4, 1, bias=False).double().to(world.device) for _ in range(2)]
        for layer, steps in zip(layers, (batches, batches.mean(0, keepdim=True)), strict=True):
            nn.init.zeros_(layer.weight)
            model = wrap(layer)
            step = rate if len(steps) == 4 else scaled(rate, s, 1)
            optimizer = torch.optim.SGD(model.parameters(), step)
            for inputs in steps:
                optimizer.zero_grad()
                model(inputs).sum().backward()
                model.synchronize()
                optimizer.step()
        small, large = (layer.weight.detach() for layer in layers)
        missed = float((large - small).norm() / small.norm())
        claim = Claim("", "|1 − s/4|", abs(1 - s / 4), missed, "1", f"{GOYAL}, §2.1", "compared", absolute=1e-12)
        cases[f"s = {s}"] = claim
    return fold(
        "part of the way of 4 steps of η that one of sη misses or adds, gradient constant, s = 1, 2, 4, 8", cases
    )


def warm_up() -> Claim:
    """The claim that a warm-up has the learning rates of torch's own linear one."""
    base, k, steps = 0.25, 8, 5
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=k * base)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / k, total_iters=steps)
    worst = 0.0
    for number in range(steps + 3):
        worst = max(worst, abs(warmed_up(number, steps, base, k * base) - float(schedule.get_last_lr()[0])))
        optimizer.step()
        schedule.step()
    what, formula = (
        "learning rates of a warm-up from η to kη: distance from torch's LinearLR",
        "η + (kη − η) · t/T until T",
    )
    return Claim(what, formula, 0, worst, "1", f"{GOYAL}, §2.2", "compared", absolute=1e-12)


def batch_norm(world: World, adjust: Callable[[nn.Module, int], None], micro_batches: int) -> list[Claim]:
    """Claims on what BatchNorm sees over ranks, and on what its running statistics keep under accumulation."""
    n, each = world.size, 4
    whole = whole_numbers(world, n * each, 1, seed=30)

    def statistics(batch: Tensor) -> tuple[float, float]:
        layer = nn.BatchNorm1d(1, momentum=1.0).double().to(world.device)  # keeps the last batch's statistics
        layer(batch)
        assert layer.running_mean is not None and layer.running_var is not None
        return layer.running_mean.item(), layer.running_var.item()

    _, variance = statistics(whole)
    means, variances = zip(*gather_objects(statistics(whole.split(each)[world.rank])), strict=True)
    centre = sum(means) / n
    between = each * sum((mean - centre) ** 2 for mean in means)
    pooled = ((each - 1) * sum(variances) + between) / (n * each - 1)

    def kept(layer: nn.BatchNorm1d) -> float:
        assert layer.running_mean is not None
        layer.running_mean.fill_(1.0)
        for _ in range(micro_batches):
            layer(torch.zeros(2, 1, dtype=torch.float64, device=world.device))
        return layer.running_mean.item()

    plain, adjusted = (nn.BatchNorm1d(1).double().to(world.device) for _ in range(2))
    adjust(adjusted, micro_batches)
    source, how = "derived", "compared"
    keeps = "part of the old running mean kept by a step of A micro-batches"
    return [
        Claim(
            "variance on one device, from each rank's variance σᵣ² and mean μᵣ of B samples",
            "((B−1) Σσᵣ² + B Σ(μᵣ−μ)²) / (nB−1)",
            pooled,
            variance,
            "1",
            "derived",
            "compared",
            tolerance=1e-12,
            key=True,
        ),
        Claim(keeps, "(1−m)^A", 0.9**micro_batches, kept(plain), "1", source, how, tolerance=1e-12),
        Claim(
            f"{keeps}, adjusted",
            "1−m, with 1−(1−m)^(1/A) for m",
            0.9,
            kept(adjusted),
            "1",
            source,
            how,
            tolerance=1e-12,
        ),
    ]


def demo(world: World, micro_batches: int = 4) -> list[Claim]:
    """Learns from one batch in many ways; the table shows what each token counts, learning rates, and BatchNorm.

    Args:
        micro_batches: A, the micro-batches of each rank in a step.
    """
    if micro_batches < 1 or micro_batches & (micro_batches - 1):
        raise ValueError(f"micro_batches={micro_batches} would make numbers round; use a power of two for this demo")
    return [
        *one_batch(world, DataParallel, accumulate, micro_batches),
        *token_weights(world, DataParallel, accumulate, micro_batches),
        *linear_scaling(world, DataParallel, scaled_learning_rate),
        *batch_norm(world, adjust_batch_norm, micro_batches),
    ]
