"""The lesson of `minitrain.craft.engine`: the loop of one device, with three calls replaced.

The engine adds up the gradients' terms in another order than one device. A sum of k terms is off by at most k·u of the
sum of their absolute values, and K = 5h + samples is the sum of the k on the way from an input to a gradient. Backward
is twice as long as forward, two runs differ by twice that, and each of T steps adds as much of what it changes: 6TKu.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.craft.engine import Engine
from minitrain.lessons.rows import Claim, Rows

HIDDEN, STEPS, PARTS = 24, 5, 3  # of the MLP, and of the training; micro-batches in a step


def demo(world: World) -> list[Claim]:
    """Trains an MLP with an engine around it; the table compares it with one device."""
    rows, plain, wrapped = Rows("Rasley et al. 2020"), model(world), model(world)
    begin = [p.detach().clone() for p in plain.parameters()]
    train(world, plain)
    with Ledger() as ledger:
        with_engine(world, wrapped)
    whole = [p.detach() for p in plain.parameters()]
    change = max(float((a - b).abs().max()) for a, b in zip(begin, whole, strict=True))
    terms = 5 * HIDDEN + PARTS * 2 * world.size
    bound, formula = 6 * STEPS * terms * torch.finfo(torch.float64).eps / 2 * change, "6TKu · largest change"
    what = "engine: largest difference of weights from one device"
    rows.near(what, [*wrapped.parameters()], whole, bound, formula, "heuristic, no proof")
    what, size = "engine: bytes into all-reduces, once in each step", 8 * sum(p.numel() for p in whole)
    rows.add(what, "T · 8Ψ", STEPS * size, ledger.payload("all_reduce"))
    return rows.claims()


def model(world: World) -> nn.Sequential:
    """What both begin with."""
    torch.manual_seed(0)
    layers = nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN)
    return nn.Sequential(*layers).double().to(world.device)


def batch(world: World, step: int, number: int) -> tuple[Tensor, Tensor]:
    """A micro-batch of all ranks: inputs and targets, [2 · ranks, HIDDEN]."""
    generator = torch.Generator().manual_seed(100 * step + number)
    x = torch.randn(2 * world.size, HIDDEN, generator=generator, dtype=torch.float64).to(world.device)
    return x, x.roll(1, -1)


def with_engine(world: World, mlp: nn.Module) -> None:
    """DeepSpeed's way: the model stays as it is, and each rank takes some samples of each micro-batch."""
    engine = Engine(mlp, torch.optim.SGD(mlp.parameters(), lr=0.1), micro_batches=PARTS)
    for step in range(STEPS):
        for number in range(PARTS):
            x, y = (each.chunk(world.size)[world.rank] for each in batch(world, step, number))
            engine.backward(nn.functional.mse_loss(engine(x), y))
            engine.step()


def train(world: World, mlp: nn.Module) -> None:
    """The loop of one device, on all samples.

    It does not clip. The engine clips at 1, and gradients are smaller here.
    """
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1)
    for step in range(STEPS):
        for number in range(PARTS):
            x, y = batch(world, step, number)
            (nn.functional.mse_loss(mlp(x), y) / PARTS).backward()
        optimizer.step()
        optimizer.zero_grad()
