"""What the demos of this chapter share: a small GPT, counting what a step sends, and comparing with one device."""

from __future__ import annotations

import copy
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.comm import Ledger, World
from minitrain.comm.groups import new_group
from minitrain.costs import data_parallel as costs
from minitrain.costs.communication import Traffic
from minitrain.data_parallel import bucketed, naive, overlapped
from minitrain.data_parallel.full.replica import Replica
from minitrain.lessons.claims import Claim, as_key
from minitrain.models.gpt import GPT, GPTConfig

SmallForm = naive.NaiveDataParallel | bucketed.BucketedDataParallel | overlapped.DataParallel
Rung = SmallForm | Replica

PAPER = "Li et al. 2020"
SEQ = 16
BUCKET = 32 * 1024  # bytes


def small_gpt(world: World, seed: int, layers: int, hidden: int) -> GPT:
    """A GPT whose gradients have the same bits each time; fused attention on a GPU adds in any order."""
    config = GPTConfig(vocabulary=61, positions=SEQ, layers=layers, hidden=hidden, heads=2, attention="plain")
    return GPT(config, seed=seed).to(world.device)


def tokens(world: World, rank: int, step: int = 0, samples: int = 2) -> tuple[Tensor, Tensor]:
    """The part of a step's batch that falls to `rank`: inputs and targets."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs, targets = torch.randint(61, (2, samples, SEQ), generator=generator).to(world.device)
    return inputs, targets


def step(world: World, model: Rung, number: int = 0) -> None:
    """One backward and synchronize on this rank's part; spans on the timeline."""
    inputs, targets = tokens(world, world.rank, number)
    with world.timeline.span("forward", "forward"):
        _, loss = model(inputs, targets)
    with world.timeline.span("backward", "backward"):
        loss.backward()
    with world.timeline.span("synchronize", "communicate"):
        model.synchronize()


def sizes(model: nn.Module) -> list[costs.Sizes]:
    """The trainable parameters as `costs` wants them."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [costs.Sizes(p.numel(), p.element_size(), str(p.dtype)) for p in trainable]


def calls(world: World, model: Replica, predicted: int, formula: str, packing: str) -> Claim:
    """The claim on the number of all-reduces in a step."""
    with Ledger() as ledger:
        step(world, model)
    measured = ledger.calls("all_reduce")
    return Claim(f"all-reduces in a step, {packing}", formula, predicted, measured, "1", f"{PAPER}, §3.2.2")


def payload(world: World, model: Replica, predicted: int, formula: str) -> Claim:
    """The claim on the bytes that go into the all-reduces of a step."""
    with Ledger() as ledger:
        step(world, model)
    measured = ledger.payload("all_reduce")
    what = "payload of a step's all-reduces, P parameters of S bytes"
    return Claim(what, formula, predicted, measured, "B", f"{PAPER}, §3.2")


def traffic(world: World, model: Replica, predicted: Traffic, formula: str, messages: str) -> list[Claim]:
    """Claims on what this rank sends in a step through the ring."""
    with Ledger() as ledger:
        step(world, model)
    what, source = "sent by this rank in a step through the ring", "Patarasuk & Yuan 2009"
    return [
        Claim(f"bytes {what}", formula, predicted.bytes, ledger.sent, "B", source),
        Claim(f"messages {what}", messages, predicted.messages, ledger.messages, "1", source),
    ]


def bucket_volume(world: World, model: Replica, through_ring: Replica) -> list[Claim]:
    """Both of these for buckets of `BUCKET` bytes."""
    sent = costs.ring_traffic(sizes(model), BUCKET, world.size, world.rank)
    formula = "Σ over buckets of 2S − cᵣ − cᵣ₊₁ ≈ 2(n−1)/n · (S + wP)"
    return [
        payload(world, model, costs.payload(sizes(model)), "S + wP, w bytes an element"),
        *traffic(world, through_ring, sent, formula, "2(n−1)B"),
    ]


def mean_of_parts(world: World, model: Rung, reference: nn.Module, form: str = "") -> Claim:
    """The claim that each gradient is the mean of the gradients that one device computes from each rank's part.

    The parts' gradients g₀ … gₙ₋₁ are the same bits here and there; only their mean rounds. It takes rounding 1/n, a
    multiplication, and n−1 additions in whatever order, each with a relative error of at most u = eps/2. So it lies
    within γ · Σ|gᵣ|/n of the exact mean, γ = (n+1)u / (1 − (n+1)u) (Higham 2002, Lemma 3.1 and §4.2). Where n is 1 or
    2, 1/n and the multiplication are exact, and one addition is the same in any order: all bits are equal.
    """
    parts = []
    for rank in range(world.size):
        reference.zero_grad()
        _, loss = reference(*tokens(world, rank))
        loss.backward()
        parts.append([parameter.grad for parameter in reference.parameters()])
    model.zero_grad()
    step(world, model)
    worst = 0.0
    for found, *terms in zip((p.grad for p in model.parameters()), *parts, strict=True):
        stacked = torch.stack(terms)
        if world.size <= 2:
            worst = max(worst, float((found - (stacked / world.size).sum(0)).abs().max()))
            continue
        error = (found.double() - stacked.double().mean(0)).abs() / stacked.double().abs().mean(0)
        worst = max(worst, error.nan_to_num(nan=0.0).max().item())  # 0/0 where no part has a gradient
    rounding = (world.size + 1) * torch.finfo(torch.float32).eps / 2
    return Claim(
        f"{form}gradients' distance from the mean of the parts on one device, in Σ|gᵣ|/n",
        "γₙ₊₁ = (n+1)u / (1 − (n+1)u); 0 for n ≤ 2",
        rounding / (1 - rounding) if world.size > 2 else 0.0,
        worst,
        source="Higham 2002, §4.2",
        how="compared",
        relation="<=",
    )


def small_form(world: World, small: SmallForm, predicted: int, formula: str, reference: nn.Module) -> list[Claim]:
    """Claims on a small form: its all-reduces, their payload (no flags travel), and the gradients of one device.

    Args:
        world: This rank.
        small: A GPT in the small form; rank 0's weights are those of `reference`.
        predicted: The number of all-reduces in a step.
        formula: For that number.
        reference: The same GPT on one device.
    """
    with Ledger() as ledger:
        step(world, small)
    form = "small form: "
    return as_key(
        Claim(f"{form}all-reduces in a step", formula, predicted, ledger.calls("all_reduce"), "1", PAPER),
        Claim(
            f"{form}payload of a step's all-reduces, gradients of S bytes",
            "S",
            costs.gradient_bytes(sizes(small)),
            ledger.payload("all_reduce"),
            "B",
            PAPER,
        ),
        mean_of_parts(world, small, reference, form),
    )


def like_full(world: World, small: SmallForm, full: Replica, where: str = "") -> Claim:
    """The claim that five steps of the small and of the full form, from the same weights, give the same bits."""
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (small, full)]
    for number in range(5):
        for model, optimizer in zip((small, full), optimizers, strict=True):
            step(world, model, number)
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(small.parameters(), full.parameters(), strict=True)
    different = sum(int((mine != its).sum()) for mine, its in pairs)
    what = f"small form: weights that differ from the full form's after 5 steps{where}"
    return Claim(what, "0", 0, different, "1", f"{PAPER}, §3.1", how="compared")


class WithSpare(nn.Module):
    """A GPT beside a parameter that no rank uses: DDP has to look for unused ones, and nobody may move them."""

    def __init__(self, gpt: GPT):
        super().__init__()
        self.gpt = gpt
        self.spare = nn.Parameter(torch.ones_like(gpt.norm.weight))

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.gpt(inputs, targets)


def neighbours(world: World) -> dist.ProcessGroup:
    """The group of this rank and its neighbour: ranks 0 and 1, 2 and 3, …; the last of an odd number is alone."""
    every = [new_group([rank for rank in (k, k + 1) if rank < world.size]) for k in range(0, world.size, 2)]
    mine = every[world.rank // 2]
    assert isinstance(mine, dist.ProcessGroup)
    return mine


def like_ddp(
    world: World,
    rung: type[Replica],
    modules: list[nn.Module],
    group: dist.ProcessGroup | None,
    bucket_megabytes: float,
) -> list[Claim]:
    """Claims that five steps give the weights that torch's DDP gives, to the last bit.

    Both multiply by 1/n and all-reduce, so where the same numbers are added in the same order, all is the same.

    Args:
        world: This rank.
        rung: What is compared with DDP.
        modules: A module for each optimizer that is tried.
        group: The ranks that share the batch.
        bucket_megabytes: For both.
    """
    claims = []
    tried = {
        "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "AdamW": partial(torch.optim.AdamW, lr=0.01),
    }
    for (name, optimizer), module in zip(tried.items(), modules, strict=True):
        other = copy.deepcopy(module)
        ours = rung(module, group, bucket_megabytes)
        theirs = DistributedDataParallel(
            other,
            process_group=group,
            find_unused_parameters=True,
            bucket_cap_mb=bucket_megabytes,  # type: ignore[arg-type]  # a float will do
        )
        optimizers = [optimizer(m.parameters()) for m in (module, other)]
        for number in range(5):
            step(world, ours, number)
            _, loss = theirs(*tokens(world, world.rank, number))
            loss.backward()
            for each in optimizers:
                each.step()
                each.zero_grad()
        pairs = zip(module.parameters(), other.parameters(), strict=True)
        different = sum(int((mine != its).sum()) for mine, its in pairs)
        where = "" if group is None else ", on two ranks"
        what = f"weights unlike those of torch's DDP after 5 steps of {name}{where}"
        claims.append(Claim(what, "0", 0, different, "1", f"{PAPER}, §3.1", how="compared"))
    return claims
