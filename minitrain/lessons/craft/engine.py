"""The lesson of `minitrain.craft.engine`: the same training twice, around any model and inside of it.

Both add up the gradients' terms in other orders than one device. A sum of k terms is off by at most k·u of the sum of
their absolute values, and K = 5h + samples is the sum of the k on the way from an input to a gradient. Backward is
twice as long as forward, two runs differ by twice that, and each of T steps adds as much of what it changes: 6TKu.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.craft.engine import Engine
from minitrain.lessons.rows import Claim, Rows, most
from minitrain.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear

HIDDEN, STEPS, PARTS = 24, 5, 3  # of the MLP, and of the training; micro-batches in a step
DEEPSPEED, MEGATRON = "Rasley et al. 2020", "Shoeybi et al. 2019, §3"


def demo(world: World) -> list[Claim]:
    """Trains an MLP with an engine around it, and with parallel layers inside; both are compared with one device."""
    rows, n, samples = Rows(), world.size, 2 * world.size
    plain, wrapped, inside = model(world), model(world), embedded(world)
    begin = [p.detach().clone() for p in plain.parameters()]
    train(world, plain)
    with Ledger() as around:
        with_engine(world, wrapped)
    with Ledger() as within:
        train(world, inside)
    whole = [p.detach() for p in plain.parameters()]
    shards = [part(world, tensor, dim) for tensor, dim in zip(whole, (0, 0, 1, None), strict=True)]
    rounding = 6 * STEPS * (5 * HIDDEN + PARTS * samples) * torch.finfo(torch.float64).eps / 2
    more = rounding * apart(begin, whole), "6TKu · largest change", "heuristic, no proof"
    rows.near("engine: largest difference of weights from one device", [*wrapped.parameters()], whole, *more)
    rows.near("parallel layers: the same, on this rank's shards", [*inside.parameters()], shards, *more)
    what, size = "engine: bytes into all-reduces, once in each step", 8 * sum(p.numel() for p in whole)
    rows.add(what, "T · 8Ψ", STEPS * size, around.payload("all_reduce"), source=DEEPSPEED)
    what, size = "parallel layers: of activations, forward, of each micro-batch", 8 * samples * HIDDEN
    rows.add(what, "T · m · 8bh", STEPS * PARTS * size, within.payload("all_reduce"), source=MEGATRON)
    what, size = "parallel layers: bytes of the two matrices on each rank", 8 * 4 * HIDDEN * HIDDEN
    held = storage_bytes([parameter for parameter in inside.parameters() if parameter.dim() == 2])
    rows.add(what, "2 · 8 · 4h²/n", 2 * size // n, held, source=MEGATRON)
    return rows.claims()


def model(world: World) -> nn.Sequential:
    """What all begin with."""
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


def embedded(world: World) -> nn.Sequential:
    """Megatron's way: the layers know of ranks."""
    up, gelu, down = model(world)
    assert isinstance(up, nn.Linear) and isinstance(down, nn.Linear)
    return nn.Sequential(ColumnParallelLinear.from_linear(up), gelu, RowParallelLinear.from_linear(down))


def train(world: World, mlp: nn.Module) -> None:
    """The loop of one device, on all samples: what parallel layers send is in the layers.

    It does not clip. The engine clips at 1, and gradients are smaller here.
    """
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1)
    for step in range(STEPS):
        for number in range(PARTS):
            x, y = batch(world, step, number)
            (nn.functional.mse_loss(mlp(x), y) / PARTS).backward()
        optimizer.step()
        optimizer.zero_grad()


def part(world: World, whole: Tensor, dim: int | None) -> Tensor:
    """This rank's shard along a dim; all of it where there is none."""
    return whole if dim is None else whole.chunk(world.size, dim)[world.rank]


def apart(found: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    return most(float((a.detach() - b).abs().max()) for a, b in zip(found, expected, strict=True))
