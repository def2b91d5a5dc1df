"""Shared by the demos of this chapter: a small GPT, counting what a step sends, and comparing with one device."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest

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
from minitrain.lessons.claims import Claim, fold
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

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
    """The trainable parameters in the form of `costs`."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [costs.Sizes(p.numel(), p.element_size(), str(p.dtype)) for p in trainable]


def counted(world: World, model: Rung) -> Ledger:
    """What this rank sends in a step."""
    with Ledger() as ledger:
        step(world, model)
    return ledger


def payload(ledger: Ledger, sent: Sequence[costs.Sizes], predicted: int, formula: str) -> dict[str, Claim]:
    """Claims on the bytes that go into the all-reduces of a step, gradients and flags: in all, and one after the other.

    Args:
        ledger: What was sent.
        sent: By theory, one after the other.
        predicted: Their bytes in all, by another formula.
        formula: That formula.
    """
    calls = [entry.bytes for entry in ledger.entries if entry.operation == "all_reduce"]
    pairs = enumerate(zip_longest([each.elements * each.item_size for each in sent], calls, fillvalue=0))
    return {
        "in all": Claim("", formula, predicted, sum(calls), "B", "derived"),
        **{f"all-reduce {i}": Claim("", formula, theory, count, "B", "derived") for i, (theory, count) in pairs},
    }


def traffic(world: World, model: Rung, predicted: Traffic, formula: str) -> Claim:
    """The claim on what this rank sends in a step through the ring, in bytes and in messages."""
    ledger, source = counted(world, model), "Patarasuk & Yuan 2009"
    cases = {
        "bytes": Claim("", formula, predicted.bytes, ledger.sent, "B", source),
        "messages": Claim("", formula, predicted.messages, ledger.messages, "messages", source),
    }
    return fold("bytes sent by this rank in a step through the ring, and their messages", cases)


def bucket_volume(world: World, models: Mapping[str, Replica], through_ring: Replica) -> list[Claim]:
    """Claims on the payload of buckets of `BUCKET` bytes, and on their bytes around the ring.

    Args:
        world: This rank.
        models: Models that are wrapped, by their names.
        through_ring: The first of them, with the ring's all-reduces.
    """
    cases = {}
    for name, model in models.items():
        packed, whole = costs.buckets(sizes(model), BUCKET), costs.payload(sizes(model))
        found = payload(counted(world, model), packed, whole, "S + wP, w bytes an element")
        cases |= {f"{name}, {case}": claim for case, claim in found.items()}
    sent = costs.ring_traffic(sizes(through_ring), BUCKET, world.size, world.rank)
    formula = "Σ over buckets of 2S − cᵣ − cᵣ₊₁ ≈ 2(n−1)/n · (S + wP), in 2(n−1)B messages"
    what = "payload of a step's all-reduces, P parameters of S bytes, in all and bucket by bucket"
    return [fold(what, cases), traffic(world, through_ring, sent, formula)]


def mean_of_parts(world: World, models: Mapping[str, Rung], reference: nn.Module) -> Claim:
    """The claim that each gradient is the mean of the gradients that one device computes from each rank's part.

    The parts' gradients g₀ … gₙ₋₁ are the same bits here and there; only their mean rounds. It takes rounding 1/n, a
    multiplication, and n−1 additions in whatever order, each with a relative error of at most u = eps/2. So it lies
    within γ · Σ|gᵣ|/n of the exact mean, γ = (n+1)u / (1 − (n+1)u) (Higham 2002, Lemma 3.1 and §4.2). Where n is 1 or
    2, 1/n and the multiplication are exact, and one addition is the same in any order: all bits are equal.

    Args:
        world: This rank.
        models: The forms, by their names, all with the weights of `reference`.
        reference: The same GPT on one device.
    """
    parts = []
    for rank in range(world.size):
        reference.zero_grad()
        _, loss = reference(*tokens(world, rank))
        loss.backward()
        parts.append([parameter.grad for parameter in reference.parameters()])
    rounding = (world.size + 1) * torch.finfo(torch.float32).eps / 2
    bound = rounding / (1 - rounding) if world.size > 2 else 0.0
    formula, source = "γₙ₊₁ = (n+1)u / (1 − (n+1)u); 0 for n ≤ 2", "Higham 2002, §4.2"
    cases = {}
    for name, model in models.items():
        model.zero_grad()
        step(world, model)
        worst = 0.0
        for found, *terms in zip((p.grad for p in model.parameters()), *parts, strict=True):
            worst = max(worst, _error(found, torch.stack(terms)))
        cases[name] = Claim("", formula, bound, worst, "1", source, "compared", "<=")
    return fold("gradients' distance from the mean of the parts on one device, in Σ|gᵣ|/n", cases, key=True)


def _error(found: Tensor, parts: Tensor) -> float:
    """The largest distance of a gradient from the mean of its parts, in the mean of their sizes."""
    if len(parts) <= 2:
        return float((found - (parts / len(parts)).sum(0)).abs().max())
    error = (found.double() - parts.double().mean(0)).abs() / parts.double().abs().mean(0)
    return error.nan_to_num(nan=0.0).max().item()  # 0/0 where no part has a gradient


def small_payload(models: Mapping[str, tuple[Ledger, SmallForm]]) -> Claim:
    """The claim on the payload of a small form's step, from what was counted of several models: no flags travel."""
    cases = {
        name: Claim("", "S", costs.gradient_bytes(sizes(model)), ledger.payload("all_reduce"), "B", PAPER)
        for name, (ledger, model) in models.items()
    }
    return fold("small form: payload of a step's all-reduces, gradients of S bytes", cases, key=True)


def like_full(world: World, small: SmallForm, full: Replica) -> Claim:
    """The claim that five steps of the small and of the full form, from the same weights, give the same bits."""
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (small, full)]
    for number in range(5):
        for model, optimizer in zip((small, full), optimizers, strict=True):
            step(world, model, number)
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(small.parameters(), full.parameters(), strict=True)
    different = sum(int((mine != its).sum()) for mine, its in pairs)
    return Claim("", "0", 0, different, "1", "derived", how="compared")


class TwoKinds(nn.Module):
    """Parameters of two dtypes by turns: neither may share a bucket with the other."""

    def __init__(self) -> None:
        super().__init__()
        dtypes = (torch.float64, torch.float32)
        self.parts = nn.ParameterList(torch.ones(700 * i + 1, dtype=dtypes[i % 2]) for i in range(9))

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[None, Tensor]:
        return None, torch.stack([part.sum().float() for part in self.parts]).sum()


class WithSpare(nn.Module):
    """A GPT and a parameter that no rank uses: DDP has to look for unused ones, and no rank may move them."""

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
) -> dict[str, Claim]:
    """Claims that five steps give the weights that torch's DDP gives, to the last bit, by optimizer.

    Both multiply by 1/n and all-reduce, so where the same numbers are added in the same order, all is the same.

    Args:
        world: This rank.
        rung: The form that is compared with DDP.
        modules: A module for each optimizer that is tried.
        group: The ranks that share the batch.
        bucket_megabytes: For both.
    """
    claims = {}
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
        claims[f"full form beside torch's DDP, {name}"] = Claim("", "0", 0, different, "1", "derived", how="compared")
    return claims
