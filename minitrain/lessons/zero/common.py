"""What the demos of stages 1 and 2 share: where each byte is, what a step sends, and data parallelism beside it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, Peak, World
from minitrain.comm.comm import AnyComm, Comm
from minitrain.comm.groups import new_group
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.costs import zero as costs
from minitrain.costs.communication import Traffic
from minitrain.lessons import Claim
from minitrain.lessons.data_parallel.common import neighbours, small_gpt, tokens
from minitrain.zero.full.sharded import Sharded

PAPER = "Rajbhandari et al. 2020"
NAMES = ("parameters", "gradients", "optimizer states")
Stage = type[Sharded]


def wrap(
    world: World,
    stage: Stage,
    layers: int,
    hidden: int,
    compute_dtype: torch.dtype | None = None,
    comm: AnyComm = None,
) -> Sharded:
    """A small GPT with AdamW. Every rank draws other weights; rank 0's are what all start from."""
    module = small_gpt(world, world.rank, layers, hidden)
    return stage(module, torch.optim.AdamW, comm, compute_dtype, lr=0.01)


def step(world: World, model: Sharded, number: int = 0, micro_batches: int = 1) -> None:
    """A step on this rank's part: backward of each micro-batch, synchronize, step, zero_grad."""
    for micro_batch in range(1, micro_batches):
        with model.no_sync():
            backward(world, model, number + 100 * micro_batch)
    backward(world, model, number)
    model.synchronize()
    model.step()
    model.zero_grad()


def backward(world: World, model: nn.Module, number: int = 0) -> None:
    """Forward and backward on this rank's part of a step's batch."""
    _, loss = model(*tokens(world, world.rank, number))
    loss.backward()


def lines(model: Sharded) -> list[costs.Line]:
    """The model's lines as `costs` wants them."""
    return [
        costs.Line(line.partition.elements, line.flat.element_size(), len(line.parameters), line.trainable)
        for line in model.lines
    ]


def held(model: Sharded) -> dict[str, int]:
    """Bytes of storages that this rank holds for the model, by category, each storage once.

    Returns:
        Bytes of "parameters", "gradients", "optimizer states" (with copies in float32) and "buffers".
    """
    seen: set[int] = set()
    every = model.lines
    return {
        "parameters": storage_bytes((t for line in every for t in (line.flat, line.shard)), seen)
        + storage_bytes(model.module.parameters(), seen),
        "gradients": storage_bytes((p.grad for p in model.module.parameters()), seen)
        + storage_bytes((line.gradient for line in every), seen),
        "optimizer states": storage_bytes((line.master for line in every), seen)
        + storage_bytes(optimizer_states(model.optimizer), seen),
        "buffers": storage_bytes(model.module.buffers(), seen),
    }


def alive() -> list[Tensor]:
    """Every tensor that Python knows at this moment."""
    gc.collect()
    # type(), since isinstance() asks the object, and some of torch's answer with a warning.
    return [each for each in gc.get_objects() if issubclass(type(each), Tensor)]


def memory(world: World, stage: Stage, number: int, layers: int, hidden: int) -> list[Claim]:
    """Claims on what is held after the second step's gradients are there, in float32 and computing in bfloat16."""
    bars = {
        "parameters": "nsw" if number < 3 else "sw",
        "gradients": "nsw" if number < 2 else "sw",
        "optimizer states": "Ks + c",
    }
    claims = []
    for dtype, state_size, where in ((None, 8, "float32"), (torch.bfloat16, 12, "bfloat16")):
        before = alive()  # kept, so that no address is used twice
        known = {tensor.untyped_storage().data_ptr() for tensor in before}
        model = wrap(world, stage, layers, hidden, dtype)
        step(world, model)
        backward(world, model, 1)
        model.synchronize()
        predicted = costs.held(number, lines(model), world.size, state_size)
        measured = held(model)
        for name in NAMES:
            what = f"bytes of {name} in {where}, AdamW"
            formula = f"Σ over lines of {bars[name]}, s = ⌈E/n⌉, w = {2 if dtype else 4}, K = {state_size}"
            source = f"{PAPER}, §5.{max(number, 1)}"
            claims.append(Claim(what, formula, predicted[name], measured[name], "B", source))
        everything = storage_bytes(alive(), known)
        what = f"bytes of all tensors made since before the model was, in {where}"
        claims.append(Claim(what, "the sum of these three", sum(predicted.values()), everything, "B", source))
        del model, before
    return claims


def sent(world: World, model: Sharded, predicted: Traffic, what: str, formula: str, micro_batches: int) -> list[Claim]:
    """Claims on bytes and messages of this rank in a step through the ring."""
    with Ledger() as ledger:
        step(world, model, micro_batches=micro_batches)
    return [
        Claim(f"bytes {what}", formula, predicted.bytes, ledger.sent, "B", f"{PAPER}, §7.2"),
        Claim(f"messages {what}", "(n−1) for each", predicted.messages, ledger.messages, "1", "Patarasuk & Yuan 2009"),
    ]


def traffic(world: World, stage: Stage, number: int, layers: int, hidden: int, micro_batches: int) -> list[Claim]:
    """Claims on what a step sends, with one micro-batch and with several."""
    model = wrap(world, stage, layers, hidden, comm=Comm(collectives=ring))
    its, claims = lines(model), []
    for many in (1, micro_batches):
        predicted = costs.step_traffic(number, its, world.size, world.rank, many)
        times = "(A+1)" if number == 2 and many > 1 else "2"
        what = f"sent by this rank in a step of {many} micro-batch{'es' * (many > 1)} through the ring"
        claims += sent(world, model, predicted, what, f"{times}(n−1)/n · padded Ψ", many)
    return claims


def mean_of_parts(world: World, stage: Stage, layers: int, hidden: int) -> Claim:
    """The claim that each shard is the mean of the gradients that one device computes from each rank's part.

    It takes rounding 1/n, a multiplication, and n−1 additions in whatever order: the bound is that of
    `minitrain.lessons.data_parallel.common.mean_of_parts`, and on one or two ranks all bits are equal.
    """
    model = wrap(world, stage, layers, hidden)
    reference = small_gpt(world, 0, layers, hidden)
    parts: list[dict[str, Tensor]] = []
    for rank in range(world.size):
        reference.zero_grad()
        _, loss = reference(*tokens(world, rank))
        loss.backward()
        parts.append({name: p.grad for name, p in reference.named_parameters() if p.grad is not None})
    backward(world, model)
    model.synchronize()
    worst = 0.0
    for line in model.lines:
        assert line.gradient is not None
        flats = [line.partition.flatten({name: part[name] for name in line.parameters}) for part in parts]
        terms = torch.stack([line.partition.shard(flat, world.rank) for flat in flats])
        if world.size <= 2:
            worst = max(worst, float((line.gradient - (terms / world.size).sum(0)).abs().max()))
            continue
        error = (line.gradient.double() - terms.double().mean(0)).abs() / terms.double().abs().mean(0)
        worst = max(worst, error.nan_to_num(nan=0.0).max().item())  # 0/0 where no part has a gradient
    rounding = (world.size + 1) * torch.finfo(torch.float32).eps / 2
    return Claim(
        "gradient shards' distance from the mean of the parts on one device, in Σ|gᵣ|/n",
        "γₙ₊₁ = (n+1)u / (1 − (n+1)u); 0 for n ≤ 2",
        rounding / (1 - rounding) if world.size > 2 else 0.0,
        worst,
        source="Higham 2002, §4.2",
        how="compared",
        relation="<=",
    )


def like_ddp(world: World, train: Callable[..., None], layers: int, hidden: int) -> list[Claim]:
    """Claims that five steps give the weights that torch's DDP with the same optimizer gives, to the last bit.

    On two ranks a sum is the same in either order, and an optimizer that treats each element by itself does to a flat
    shard what it does to whole tensors.

    Args:
        world: This rank.
        train: `train(world, module, optimizer_class, group, inputs_of, **options)` makes five steps of a stage.
        layers: Blocks of the GPT.
        hidden: Its width.
    """
    group = neighbours(world)
    tried = {
        "SGD with momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        "AdamW": (torch.optim.AdamW, {"lr": 0.01}),
    }
    claims = []
    for name, (optimizer, options) in tried.items():
        ours, other = (small_gpt(world, 0, layers, hidden) for _ in range(2))
        part = partial(tokens, world, world.rank)
        train(world, ours, optimizer, group, part, **options)
        ddp(other, optimizer, group, part, **options)
        what = f"weights unlike those of torch's DDP after 5 steps of {name}, on two ranks"
        key = optimizer is torch.optim.AdamW
        claims.append(Claim(what, "0", 0, unlike(ours, other), "1", f"{PAPER}, §2.2.3", how="compared", key=key))
    return claims


def ddp(
    module: nn.Module,
    optimizer: type[torch.optim.Optimizer],
    group: dist.ProcessGroup | None,
    part: Callable[[int], tuple[Tensor, Tensor]],
    **options: Any,
) -> None:
    """Five steps of torch's DDP."""
    model = DistributedDataParallel(module, process_group=group)
    stepped = optimizer(module.parameters(), **options)
    for number in range(5):
        _, loss = model(*part(number))
        loss.backward()
        stepped.step()
        stepped.zero_grad()


def unlike(one: nn.Module, other: nn.Module) -> int:
    """How many elements of the parameters differ."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return sum(int((mine != its).sum()) for mine, its in pairs)


class WholeNumbers(nn.Module):
    """A linear layer whose training does not round: whole weights and inputs in float64, steps of a power of two.

    With whole inputs from −2 to 2 and a learning rate of 2⁻⁸, weights are multiples of 2⁻⁸, 2⁻¹⁶, …, 2⁻⁴⁰ after the
    five steps, and all sums stay below 2¹²: 52 bits, and float64 has 53. Sums are then exact, the same in any order.
    """

    def __init__(self, world: World, ranks: int):
        super().__init__()
        self.ranks = ranks
        self.layer = nn.Linear(5, 3).double().to(world.device)
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) % 5 - 2)

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.layer(inputs)
        return outputs, (outputs - targets).square().sum() * self.ranks  # which the mean over ranks divides by


def whole_numbers(world: World, rank: int, number: int) -> tuple[Tensor, Tensor]:
    """A rank's part of a step's batch, for `WholeNumbers`: two samples."""
    generator = torch.Generator().manual_seed(100 * number + rank)
    batch = torch.randint(-2, 3, (2, 8), generator=generator, dtype=torch.float64).to(world.device)
    return batch[:, :5], batch[:, 5:]


def like_ddp_exactly(world: World, train: Callable[..., None]) -> Claim:
    """The claim that five steps give DDP's weights to the last bit on more than two ranks, where nothing rounds.

    1/n must not round either: the first 2ᵏ ranks take part, the others look on.
    """
    ranks = 1 << (world.size.bit_length() - 1)
    group = new_group(list(range(ranks)))
    ours, other = (WholeNumbers(world, ranks) for _ in range(2))
    if world.rank < ranks:
        assert isinstance(group, dist.ProcessGroup)
        part = partial(whole_numbers, world, world.rank)
        train(world, ours, torch.optim.SGD, group, part, lr=2.0**-8)
        ddp(other, torch.optim.SGD, group, part, lr=2.0**-8)
    what = f"weights unlike those of torch's DDP after 5 steps of SGD in whole numbers, on {ranks} ranks"
    return Claim(what, "0", 0, unlike(ours, other), "1", f"{PAPER}, §2.2.3", how="compared")


def train(
    stage: Stage,
    world: World,
    module: nn.Module,
    optimizer: type[torch.optim.Optimizer],
    group: dist.ProcessGroup | None,
    part: Callable[[int], tuple[Tensor, Tensor]],
    **options: Any,
) -> None:
    """Five steps of a stage; `partial(train, Zero1)` is what `like_ddp` wants."""
    model = stage(module, optimizer, group, **options)
    for number in range(5):
        _, loss = model(*part(number))
        loss.backward()
        model.synchronize()
        model.step()
        model.zero_grad()


def most_gradients(world: World, stage: Stage, layers: int, hidden: int) -> tuple[int, int, int]:
    """The most bytes of gradients that a rank holds in a step, shards included, and what they are made of.

    A stack of equal layers, each a unit, with a single sample, so that activations are small beside weights. Through
    the ring, whose receive buffers are less than a line and stay from the first step; gloo copies whole lines unseen.

    Returns:
        The peak; bytes of one layer's gradient; and at most so many of activations' gradients and single numbers.
    """
    module = nn.Sequential(*(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))).to(world.device)
    model = stage(module, torch.optim.SGD, Comm(collectives=ring), lr=0.1)
    kept = peak = 0
    for _ in range(2):  # the second time shards have their memory
        loss = model(torch.ones(1, hidden, device=world.device)).sum()
        with Peak(world.device) as above:
            loss.backward()
            model.synchronize()
        peak = kept + above.bytes
        kept = held(model)["gradients"]
        model.step()
        model.zero_grad()
    return peak, 4 * hidden * hidden, 8 * 4 * hidden


@contextmanager
def unchecked() -> Iterator[None]:
    """Without comparing across ranks, whose messages take memory, too: for measuring a peak."""
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.OFF)
    try:
        yield
    finally:
        dist.set_debug_level(level)
