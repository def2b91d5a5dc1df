"""The lesson of `minitrain.data_parallel.accumulation`: one batch in many ways, in whole numbers.

Weights, inputs and targets are small whole numbers in float64, and a rank's share of the batch is a power of two. Sums,
products and divisions are then exact, whatever their order. Only where the number of ranks is no power of two does
their mean round.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, SavedActivations, World
from minitrain.data_parallel.accumulation import accumulate
from minitrain.data_parallel.overlapped import DataParallel
from minitrain.lessons.data_parallel import common as lesson
from minitrain.lessons.rows import Claim, Rows

GOYAL = "Goyal et al. 2017, §3"


def demo(world: World) -> list[Claim]:
    """Learns from one batch in many ways; the table shows gradients, memory, and what each token counts."""
    rows, micro_batches, each = Rows(GOYAL), 4, 8  # A, and samples of a rank: powers of two, so that nothing rounds
    x, y = (whole_numbers(world, world.size * each, width, seed=10 + width) for width in (4, 3))
    device = gradients_of(world, (x, y))
    alone = [gradients_of(world, part) for part in zip(x.split(each), y.split(each), strict=True)]
    for pieces in (micro_batches, 1):
        case = f"{pieces} micro-batches"
        model, kept = DataParallel(network(world)), []

        def loss_of(module: nn.Module, pair: tuple[Tensor, Tensor], kept: list[int] = kept) -> Tensor:
            with SavedActivations(module) as saved:
                loss = mean_loss(module, *pair)
            kept.append(saved.bytes)
            return loss

        mine = (part.split(each)[world.rank].split(each // pieces) for part in (x, y))
        pairs = [(one.clone(), other.clone()) for one, other in zip(*mine, strict=True)]
        with Ledger() as ledger:
            accumulate(model, pairs, loss_of)
        what = "gradients' distance from one device with the whole batch"
        lesson.near_mean(rows, what, lesson.gradients(model), torch.stack(alone), device, case)
        what = "small form: all-reduces in a step, of any number of micro-batches: one of a bucket, and one of the loss"
        rows.add(what, "B + 1", 2, ledger.calls("all_reduce"), "1", "Li et al. 2020, §3.2.4", case=case)
        # Inputs of both layers, and the errors: 4 + 8 + 3 elements of 8 bytes for each sample.
        what = "small form: most bytes that forward keeps, b samples"
        rows.add(what, "8 · 15 · b/A", 8 * 15 * each / pieces, max(kept), "B", "derived", case=case)
    return rows.claims()


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


def mean_loss(module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return (module(inputs) - targets).square().sum() / len(inputs)


def gradients_of(world: World, pair: tuple[Tensor, Tensor]) -> Tensor:
    """Those of one device."""
    module = network(world)
    mean_loss(module, *pair).backward()
    return lesson.gradients(module)
