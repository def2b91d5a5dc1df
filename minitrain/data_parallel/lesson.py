"""What the demos of this chapter share: a small GPT, counting what a step sends, and comparing with one device."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.costs import data_parallel as costs
from minitrain.data_parallel.replica import Replica
from minitrain.models.gpt import GPT, GPTConfig
from minitrain.runtime import Claim, Ledger, World

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


def step(world: World, model: Replica, number: int = 0) -> None:
    """One backward and synchronize on this rank's part; spans on the timeline."""
    inputs, targets = tokens(world, world.rank, number)
    with world.timeline.span("forward", "forward"):
        _, loss = model(inputs, targets)
    with world.timeline.span("backward", "backward"):
        loss.backward()
    with world.timeline.span("synchronize", "communicate"):
        model.synchronize()


def sizes(model: Replica) -> list[costs.Sizes]:
    """The trainable parameters as `costs` wants them."""
    return [costs.Sizes(p.numel(), p.element_size(), str(p.dtype)) for p in model.trainable.values()]


def calls(world: World, model: Replica, limit: float, formula: str, packing: str) -> Claim:
    """The claim on the number of all-reduces in a step."""
    with Ledger() as ledger:
        step(world, model)
    predicted, measured = costs.all_reduces(sizes(model), limit), ledger.calls("all_reduce")
    return Claim(f"all-reduces in a step, {packing}", formula, predicted, measured, "1", f"{PAPER}, §3.2.2")


def volume(world: World, model: Replica, through_ring: Replica, limit: float) -> list[Claim]:
    """Claims on the bytes of a step: payload of torch's all-reduces, and what this rank sends through the ring."""
    with Ledger() as ledger:
        step(world, model)
    with Ledger() as ring_ledger:
        step(world, through_ring)
    predicted = costs.ring_traffic(sizes(through_ring), limit, world.size, world.rank)
    formula, source = "Σ over buckets of 2S − cᵣ − cᵣ₊₁ ≈ 2(n−1)/n · (S + 4P)", "Patarasuk & Yuan 2009"
    return [
        Claim(
            "payload of a step's all-reduces, P parameters of S bytes together",
            "S + 4P",
            costs.payload(sizes(model)),
            ledger.payload("all_reduce"),
            "B",
            f"{PAPER}, §3.2",
        ),
        Claim("bytes sent by this rank through the ring", formula, predicted.bytes, ring_ledger.sent, "B", source),
        Claim(
            "messages sent by this rank through the ring",
            "2(n−1)(B + 1)",
            predicted.messages,
            ring_ledger.messages,
            "1",
            source,
        ),
    ]


def mean_of_parts(world: World, model: Replica, reference: nn.Module) -> Claim:
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
        "gradients' distance from the mean of the parts on one device, in Σ|gᵣ|/n",
        "γₙ₊₁ = (n+1)u / (1 − (n+1)u); 0 for n ≤ 2",
        rounding / (1 - rounding) if world.size > 2 else 0.0,
        worst,
        source="Higham 2002, §4.2",
        how="compared",
        relation="<=",
    )


class WithSpare(nn.Module):
    """A GPT beside a layer that no rank uses: DDP has to look for unused parameters, and nobody may move them."""

    def __init__(self, gpt: GPT):
        super().__init__()
        self.gpt, self.spare = gpt, nn.Linear(3, 3)

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.gpt(inputs, targets)


def like_ddp(world: World, rung: type[Replica], layers: int, hidden: int) -> list[Claim]:
    """Claims that five steps give the weights that torch's DDP gives, to the last bit.

    Both multiply by 1/n and all-reduce. With one parameter in each bucket the buckets hold the same, so the same
    library call adds the same numbers in the same order.
    """
    claims = []
    for name, optimizer in (
        ("SGD with momentum", partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
        ("AdamW", partial(torch.optim.AdamW, lr=0.01)),
    ):
        module = WithSpare(small_gpt(world, 0, layers, hidden)).to(world.device)
        other = copy.deepcopy(module)
        tiny = 1e-6  # MiB: one byte, so that every parameter fills a bucket
        ours = rung(module, None, tiny)
        theirs = DistributedDataParallel(other, find_unused_parameters=True, bucket_cap_mb=tiny)  # type: ignore[arg-type]
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
        what = f"weights unlike those of torch's DDP after 5 steps of {name}"
        claims.append(Claim(what, "0", 0, different, "1", f"{PAPER}, §3.1", how="compared"))
    return claims
