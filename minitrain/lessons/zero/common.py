"""Shared by the demos of stages 1 and 2: where each byte is, what a step sends, and data parallelism for comparison."""

from __future__ import annotations

import gc
import time
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
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.costs import zero as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.data_parallel.common import neighbours, small_gpt, tokens
from minitrain.zero.full.sharded import Sharded

PAPER = "Rajbhandari et al. 2020"
NAMES = ("parameters", "gradients", "optimizer states")
PRECISIONS = ((torch.bfloat16, 12, "bfloat16"), (None, 8, "float32"))  # compute, state bytes per element, its name
VOLUMES = {1: "2", 2: "(A + 1)", 3: "3A"}  # what a step of A micro-batches sends, in Ψ
Stage = Callable[..., Sharded]  # a stage's class, or a function that makes one


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
    """The model's lines in the form of `costs`."""
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
    time.sleep(0.1)  # gloo's threads let go of a message's tensors a moment after wait() has returned
    gc.collect()
    # type(), since isinstance() asks the object, and some of torch's answer with a warning.
    tensors = [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
    # A tensor that only wraps others, such as FSDP2's DTensor, has no memory of its own.
    return [each for each in tensors if not hasattr(type(each), "__tensor_flatten__")]


def memory(world: World, stage: Stage, number: int, layers: int, hidden: int) -> list[Claim]:
    """Claims on what is held once the second step's gradients have arrived, computing in bfloat16 and in float32.

    Categories with one formula share a claim: parameters and gradients are whole in stage 1, and divided in stage 3.
    """
    shares = {
        "parameters": "nsw" if number < 3 else "sw",
        "gradients": "nsw" if number < 2 else "sw",
        "optimizer states": "Ks + c",
    }
    source = f"{PAPER}, §5.{number}"
    cases: dict[str, dict[str, Claim]] = {share: {} for share in shares.values()}
    totals = {}
    for dtype, state_size, where in PRECISIONS:
        before = alive()  # kept, so that no address is used twice
        known = {tensor.untyped_storage().data_ptr() for tensor in before}
        model = wrap(world, stage, layers, hidden, dtype)
        step(world, model)
        backward(world, model, 1)
        model.synchronize()
        predicted = costs.held(number, lines(model), world.size, state_size)
        measured = held(model)
        for name, share in shares.items():
            formula = f"Σ over lines of {share}, s = ⌈E/n⌉"
            cases[share][f"{name}, {where}"] = Claim("", formula, predicted[name], measured[name], "B", source)
        everything = storage_bytes(alive(), known)
        totals[where] = Claim("", "the sum of the three", sum(predicted.values()), everything, "B", source)
        del model, before
    both = "in bfloat16 and float32"
    claims = []
    for share, its in cases.items():
        names = " and of ".join(name for name in NAMES if shares[name] == share)
        claims.append(fold(f"bytes of {names}, AdamW, {both}", its))
    return [*claims, fold(f"bytes of all tensors made since before the model was, {both}", totals)]


def traffic(world: World, stage: Stage, number: int, layers: int, hidden: int, micro_batches: int) -> Claim:
    """The claim on bytes and messages of this rank in a step through the ring, of several micro-batches and of one."""
    model = wrap(world, stage, layers, hidden, comm=Comm(collectives=ring))
    formula, source = f"{VOLUMES[number]} · (n−1)/n · padded Ψ", f"{PAPER}, §7.2; Patarasuk & Yuan 2009, §3"
    cases = {}
    for many in (micro_batches, 1):
        predicted = costs.step_traffic(number, lines(model), world.size, world.rank, many)
        with Ledger() as ledger:
            step(world, model, micro_batches=many)
        cases[f"A = {many}"] = Claim("", formula, predicted.bytes, ledger.sent, "B", source)
        cases[f"messages, A = {many}"] = Claim(
            "", "n − 1 for each line", predicted.messages, ledger.messages, "messages", source
        )
    what = f"bytes sent by this rank in a step through the ring, A = {micro_batches} micro-batches; and A = 1"
    return fold(f"{what}, and messages", cases)


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
        terms = torch.stack([line.partition.shard(flat, model.rank) for flat in flats])
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


def like_ddp(world: World, train: Callable[..., None], layers: int, hidden: int) -> Claim:
    """The claim that five steps give the weights that torch's DDP with the same optimizer gives, to the last bit.

    On two ranks a sum is the same in either order, and an optimizer that treats each element by itself does to a flat
    shard what it does to whole tensors. On more ranks they are equal where nothing rounds.

    Args:
        world: This rank.
        train: `train(world, module, optimizer_class, group, inputs_of, **options)` makes five steps of a stage.
        layers: Blocks of the GPT.
        hidden: Its width.
    """
    group = neighbours(world)
    tried = {
        "AdamW, on two ranks": (torch.optim.AdamW, {"lr": 0.01}),
        "SGD with momentum, on two ranks": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    }
    cases = {}
    for name, (optimizer, options) in tried.items():
        ours, other = (small_gpt(world, 0, layers, hidden) for _ in range(2))
        part = partial(tokens, world, world.rank)
        train(world, ours, optimizer, group, part, **options)
        ddp(other, optimizer, group, part, **options)
        cases[name] = _same(ours, other)
    cases["SGD in whole numbers, on all ranks"] = _like_ddp_exactly(world, train)
    return fold("weights that differ from those of torch's DDP after 5 steps of AdamW, and of SGD", cases, key=True)


def _same(ours: nn.Module, other: nn.Module) -> Claim:
    return Claim("", "θ = θ_DDP", 0, unlike(ours, other), "elements", "derived", "compared")


def ddp(
    module: nn.Module,
    optimizer: type[torch.optim.Optimizer],
    group: dist.ProcessGroup | None,
    part: Callable[[int], tuple[Tensor, Tensor]],
    **options: Any,
) -> None:
    """Five steps of torch's DDP."""
    unused = isinstance(module, WholeNumbers)  # has a layer that some ranks do not use
    model = DistributedDataParallel(module, process_group=group, find_unused_parameters=unused)
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
    """Two linear layers whose training does not round: whole weights and inputs in float64, steps of a power of two.

    With whole inputs from −2 to 2 and a learning rate of 2⁻⁸, weights are multiples of 2⁻⁸, 2⁻¹⁶, …, 2⁻⁴⁰ after the
    five steps, and all sums stay below 2¹²: 52 bits, and float64 has 53. Sums are then exact, the same in any order.

    Only even ranks use the second layer. The others add zeros to its gradient.
    """

    def __init__(self, world: World, ranks: int):
        super().__init__()
        self.ranks, self.rank = ranks, world.rank
        self.layer, self.sometimes = (nn.Linear(5, 3).double().to(world.device) for _ in range(2))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) % 5 - 2)

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        outputs = [layer(inputs) for layer in (self.layer, self.sometimes)[: 2 - self.rank % 2]]
        loss = torch.stack([(each - targets).square().sum() for each in outputs]).sum()
        return outputs[0], loss * self.ranks  # which the mean over ranks divides by


def whole_numbers(world: World, rank: int, number: int) -> tuple[Tensor, Tensor]:
    """A rank's part of a step's batch, for `WholeNumbers`: two samples."""
    generator = torch.Generator().manual_seed(100 * number + rank)
    batch = torch.randint(-2, 3, (2, 8), generator=generator, dtype=torch.float64).to(world.device)
    return batch[:, :5], batch[:, 5:]


def _like_ddp_exactly(world: World, train: Callable[..., None]) -> Claim:
    """The claim that five steps give DDP's weights to the last bit on more than two ranks, where nothing rounds.

    1/n must not round either: the first 2ᵏ ranks take part, the others only wait.
    """
    ranks = 1 << (world.size.bit_length() - 1)
    group = new_group(list(range(ranks)))
    ours, other = (WholeNumbers(world, ranks) for _ in range(2))
    if world.rank < ranks:
        assert isinstance(group, dist.ProcessGroup)
        part = partial(whole_numbers, world, world.rank)
        train(world, ours, torch.optim.SGD, group, part, lr=2.0**-8)
        ddp(other, torch.optim.SGD, group, part, lr=2.0**-8)
    return _same(ours, other)


def clipping(world: World, stage: Stage) -> list[Claim]:
    """Claims on the norm of all gradients, before and after clipping: one device's, for the sum of one number.

    In float64. A dozen squares, their sums and two roots are off by less than 32u on either side, u = 2⁻⁵³.
    """
    most = 0.5
    model = stage(WholeNumbers(world, world.size), torch.optim.SGD, Comm(collectives=ring), lr=0.1)
    model(*whole_numbers(world, world.rank, 0))[1].backward()
    model.synchronize()
    with Ledger() as ledger:
        before = model.clip_grad_norm(most)
    after = norm_of(model)
    model.clip_grad_norm(2 * most)
    again = norm_of(model)
    one = WholeNumbers(world, 1)
    for one.rank in range(world.size):
        one(*whole_numbers(world, one.rank, 0))[1].backward()
    expected = torch.nn.utils.clip_grad_norm_(one.parameters(), most)
    left = torch.nn.utils.get_total_norm([p.grad for p in one.parameters() if p.grad is not None])
    room = 32 * torch.finfo(torch.float64).eps
    what, source = (
        "norm of all gradients, before and after clipping; after another to more",
        "Pascanu et al. 2013, §3.2",
    )
    cases = {
        name: Claim(
            "", "√Σ over ranks of |own shards|²", float(its), float(mine), "1", source, "compared", tolerance=room
        )
        for name, its, mine in (("before", expected, before), ("after", left, after), ("to more", left, again))
    }
    sent = costs.clip_traffic(world.size, world.rank).bytes
    return [
        fold(what, cases),
        Claim("bytes sent by this rank for that norm", "ring all-reduce of 8 bytes", sent, ledger.sent, "B", "derived"),
    ]


def norm_of(model: Any) -> float:
    """Of all ranks' gradient shards."""
    own = sum(float(line.gradient.square().sum()) for line in model.lines if line.gradient is not None)
    return sum(gather_objects(own)) ** 0.5


def train(
    stage: Stage,
    world: World,
    module: nn.Module,
    optimizer: type[torch.optim.Optimizer],
    group: dist.ProcessGroup | None,
    part: Callable[[int], tuple[Tensor, Tensor]],
    **options: Any,
) -> None:
    """Five steps of a stage; `partial(train, Zero1)` is an argument of `like_ddp`."""
    model = stage(module, optimizer, group, **options)
    for number in range(5):
        _, loss = model(*part(number))
        loss.backward()
        model.synchronize()
        model.step()
        model.zero_grad()


def most_gradients(world: World, stage: Stage, layers: int, hidden: int) -> tuple[int, int, int]:
    """The most bytes of gradients that a rank holds in a step, shards included, and what they are made of.

    A stack of equal layers, each a unit, with a single sample, so that activations are small compared with weights.
    Through the ring, whose receive buffers are less than a line and stay from the first step; gloo copies whole lines
    unseen.

    Returns:
        The peak; bytes of one layer's gradient; and an upper bound on activations' gradients and single numbers.
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
