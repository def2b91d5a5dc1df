"""The lesson of `minitrain.craft.engine`: the same training twice, around any model and inside of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.craft.engine import Engine
from minitrain.lessons.claims import Claim
from minitrain.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear

HIDDEN, STEPS, PARTS = 24, 5, 3  # of the MLP, and of the training; micro-batches in a step
DEEPSPEED, MEGATRON = "Rasley et al. 2020", "Shoeybi et al. 2019, §3"


def demo(world: World) -> list[Claim]:
    """Trains an MLP with an engine around it, and with parallel layers inside; both are compared with one device."""
    plain, expected = model(world), []
    for _ in one_device(world, plain):
        expected.append([p.detach().clone() for p in plain.parameters()])
    wrapped = model(world)
    with Ledger() as around:
        with_engine(world, wrapped)
    inside = embedded(world)
    with Ledger() as within:
        train_embedded(world, inside)
    whole = inside.parameters()
    shards = [part(world, tensor, dim) for tensor, dim in zip(expected[-1], (0, 0, 1, None), strict=True)]
    elements = sum(p.numel() for p in plain.parameters())
    size = 8 * 4 * HIDDEN * HIDDEN  # of one matrix
    return [
        Claim(
            "engine: largest difference of weights from one device",
            "θ = θ₁",
            0,
            apart(wrapped.parameters(), expected[-1]),
            "1",
            DEEPSPEED,
            "compared",
            absolute=1e-12,
            key=True,
        ),
        Claim(
            "parallel layers: the same, on this rank's shards",
            "θ = θ₁",
            0,
            apart(whole, shards),
            "1",
            MEGATRON,
            "compared",
            absolute=1e-12,
            key=True,
        ),
        Claim(
            "engine: bytes into all-reduces, once in each step",
            "T · 8Ψ",
            STEPS * 8 * elements,
            around.payload("all_reduce"),
            "B",
            DEEPSPEED,
            key=True,
        ),
        Claim(
            "parallel layers: of activations, forward, of each micro-batch",
            "T · m · 8bh",
            STEPS * PARTS * 8 * rows(world) * HIDDEN,
            within.payload("all_reduce"),
            "B",
            MEGATRON,
            key=True,
        ),
        Claim(
            "engine: bytes of the two matrices on each rank",
            "2 · 8 · 4h²",
            2 * size,
            storage_bytes(matrices(wrapped)),
            "B",
            DEEPSPEED,
        ),
        Claim(
            "parallel layers: bytes of the two matrices on each rank",
            "2 · 8 · 4h²/n",
            2 * size // world.size,
            storage_bytes(matrices(inside)),
            "B",
            MEGATRON,
            key=True,
        ),
    ]


def model(world: World) -> nn.Sequential:
    """What both begin with."""
    torch.manual_seed(0)
    layers = nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN)
    return nn.Sequential(*layers).double().to(world.device)


def rows(world: World) -> int:
    """Samples of a micro-batch, over all ranks."""
    return 2 * world.size


def batch(world: World, step: int, number: int) -> tuple[Tensor, Tensor]:
    """A micro-batch of all ranks: inputs and targets, [rows, HIDDEN]."""
    generator = torch.Generator().manual_seed(100 * step + number)
    x = torch.randn(rows(world), HIDDEN, generator=generator, dtype=torch.float64).to(world.device)
    return x, x.roll(1, -1)


def with_engine(world: World, mlp: nn.Module) -> None:
    """DeepSpeed's way: the model stays as it is, and each rank takes some samples of each micro-batch."""
    engine = Engine(mlp, torch.optim.SGD(mlp.parameters(), lr=0.1), micro_batches=PARTS)
    for step in range(STEPS):
        for number in range(PARTS):
            x, y = (each.chunk(world.size)[world.rank] for each in batch(world, step, number))
            loss = nn.functional.mse_loss(engine(x), y)
            engine.backward(loss)
            engine.step()


def embedded(world: World) -> nn.Sequential:
    """Megatron's way: the layers know of ranks."""
    up, gelu, down = model(world)
    assert isinstance(up, nn.Linear) and isinstance(down, nn.Linear)
    return nn.Sequential(ColumnParallelLinear.from_linear(up), gelu, RowParallelLinear.from_linear(down))


def train_embedded(world: World, mlp: nn.Module) -> None:
    """The loop of one device, on all samples: what is sent is in the layers."""
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1)
    for step in range(STEPS):
        for number in range(PARTS):
            x, y = batch(world, step, number)
            loss = nn.functional.mse_loss(mlp(x), y)
            (loss / PARTS).backward()
        optimizer.step()
        optimizer.zero_grad()


def one_device(world: World, mlp: nn.Module):
    """The same in plain PyTorch; yields after each step."""
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1)
    for step in range(STEPS):
        for number in range(PARTS):
            x, y = batch(world, step, number)
            (nn.functional.mse_loss(mlp(x), y) / PARTS).backward()
        # The engine clips at 1, and so does this; the gradients here are smaller, so the parallel layers need not.
        assert nn.utils.clip_grad_norm_(mlp.parameters(), 1.0) < 1
        optimizer.step()
        optimizer.zero_grad()
        yield


def matrices(mlp: nn.Module) -> list[Tensor]:
    """Its parameters with two dims."""
    return [parameter for parameter in mlp.parameters() if parameter.dim() == 2]


def part(world: World, whole: Tensor, dim: int | None) -> Tensor:
    """This rank's shard along a dim; all of it where there is none."""
    return whole if dim is None else whole.chunk(world.size, dim)[world.rank]


def apart(found, expected) -> float:
    return max(float((a.detach() - b).abs().max()) for a, b in zip(found, expected, strict=True))
