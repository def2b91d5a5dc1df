"""Shared by the demos of optimizers: the full forms on ZeRO's flat shards, which cut matrices anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.costs import optimizers as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.optimizers import common
from minitrain.optimizers import LAMB, LARS, Adafactor, Muon
from minitrain.optimizers.sm3 import SM3
from minitrain.zero.full.sharded import Sharded
from minitrain.zero.full.stage1 import Zero1
from minitrain.zero.full.states import gathered

STEPS = 3
Groups = Callable[[Sequence[nn.Parameter]], list[dict[str, Any]]]


def together(parameters: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": list(parameters)}]


def matrices_apart(parameters: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """Muon's matrices, and all other tensors, which are AdamW's."""
    others = [parameter for parameter in parameters if parameter.dim() != 2]
    return [
        {"params": [parameter for parameter in parameters if parameter.dim() == 2]},
        {"params": others, "use_muon": False},
    ]


@dataclass(frozen=True)
class Run:
    """A training under the full Zero1, and the same on one device, with the same mean gradients.

    Attributes:
        difference: The largest of parameters.
        size: The largest parameter plus `path`, which no parameter has exceeded.
        path: The sum of all steps' largest changes.
        ledger: What the optimizer's steps have sent, without gradients.
        held: Bytes of states on this rank.
        lines: Elements of each line.
    """

    difference: float
    size: float
    path: float
    ledger: Ledger
    held: int
    lines: list[int]


def run(world: World, make: Callable[..., Any], groups: Groups = together) -> Run:
    """Three steps in float64, each rank with gradients of its own."""
    module = nn.ParameterList([nn.Parameter(theta) for theta in common.parameters(world, common.SHAPES)])
    plain = [nn.Parameter(theta) for theta in common.parameters(world, common.SHAPES)]
    # A class is asked for, since ranks compare its name.
    kind, options = (make.func, make.keywords) if isinstance(make, partial) else (make, {})
    model = Zero1(module, kind, parameter_groups=groups(list(module)), **options)  # type: ignore[arg-type]
    optimizer = make(groups(plain))
    ledger, path = Ledger(), 0.0
    for step in range(STEPS):
        for number, each in enumerate(module):
            assert each.grad is not None
            each.grad.copy_(common.draw(world, each.shape, 10_000 * (world.rank + 1) + 100 * step + number))
        model.synchronize()
        for name, gradient in means(model).items():
            plain[int(name)].grad = gradient
        with ledger:
            model.step()
        model.zero_grad()
        before = [theta.detach().clone() for theta in plain]
        optimizer.step()
        path += common.largest_difference(detached(plain), before)
    return Run(
        common.largest_difference(detached(module), detached(plain)),
        max(float(theta.abs().max()) for theta in detached(plain)) + path,
        path,
        ledger,
        storage_bytes(optimizer_states(model.optimizer)),
        [line.partition.elements for line in model.lines],
    )


def detached(parameters: Any) -> list[Tensor]:
    return [parameter.detach() for parameter in parameters]


def means(model: Sharded) -> dict[str, Tensor]:
    """The mean gradients, by name, from all ranks' shards."""
    found: dict[str, Tensor] = {}
    for line in model.lines:
        assert line.gradient is not None
        found |= line.partition.views(gathered(line.gradient, line.partition, model.comm))
    return {name: gradient.clone() for name, gradient in found.items()}


def equal(found: Run, absolute: float) -> Claim:
    """The claim that shards are stepped as whole tensors are, `absolute` being the derived bound."""
    return Claim(
        f"{STEPS} steps of the full form on flat shards of ZeRO-1: largest difference from one device",
        "θ_sharded = θ",
        0,
        found.difference,
        source="derived",
        how="compared",
        absolute=absolute,
        key=True,
    )


def states_held(found: Run, predicted: int, formula: str) -> Claim:
    """The claim on the bytes of the full form's states."""
    what = "bytes of the full form's states on this rank under ZeRO-1, in float64, step counters included"
    return Claim(what, formula, predicted, found.held, "B", "derived")


def sent(world: World, found: Run, verb: str, predicted: int, formula: str, key: bool = False) -> Claim:
    """The claim on the payload of the messages of the optimizer's steps."""
    what = f"bytes of {STEPS} steps under ZeRO-1: {verb.replace('_', '-')}s in the steps of the full form"
    if world.size == 1:
        return Claim.needs_ranks(2, what, formula, "derived", key)
    return Claim(what, formula, predicted, found.ledger.payload(verb), "B", "derived", key=key)


def collectives_of_their_own(world: World) -> Claim:
    """The claim on what each optimizer that may step a flat shard needs from other ranks."""
    formula = "0; 1 of norms; 2 of sums; 1 per line of matrices"
    ways = {
        "AdamW": (torch.optim.AdamW, together),
        "LARS": (LARS, together),
        "LAMB": (LAMB, together),
        "Adafactor": (Adafactor, together),
        "Muon": (Muon, matrices_apart),
    }
    what = f"collectives in {STEPS} steps under ZeRO-1 besides those of gradients and parameters: {', '.join(ways)}"
    if world.size == 1:
        return Claim.needs_ranks(2, what, formula, "derived", key=True)
    cases = {}
    for name, (kind, groups) in ways.items():
        found = run(world, kind, groups)
        calls = found.ledger.calls("all_reduce") + found.ledger.calls("all_gather") - STEPS * len(found.lines)
        predicted = STEPS * costs.own_collectives(name, lines=1)
        cases[name] = Claim("", formula, predicted, calls, "calls", "derived")
    return fold(what, cases, key=True)


class AsTorchs(torch.optim.Optimizer):
    """SM3, which keeps maxima over rows and columns, with torch's interface."""

    def __init__(self, params: Any):
        super().__init__(params, {})
        self.small = SM3([parameter for group in self.param_groups for parameter in group["params"]])

    def step(self, closure: Any = None) -> Any:
        self.small.step()


def refused(world: World) -> Claim:
    """The claim on optimizers that mix elements and are not told what lies in a shard: ZeRO accepts none of them."""
    module = nn.ParameterList([nn.Parameter(theta) for theta in common.parameters(world, common.SHAPES)])
    kinds = {"torch's Adafactor": torch.optim.Adafactor, "torch's Muon": torch.optim.Muon, "LBFGS": torch.optim.LBFGS}
    accepted = [name for name, kind in {**kinds, "SM3": AsTorchs}.items() if accepts(module, kind)]
    what = "of torch's Adafactor, torch's Muon, LBFGS and SM3, those that ZeRO lets step a flat shard"
    return Claim(what, "0", 0, len(accepted), "optimizers", "derived", "compared")


def accepts(module: nn.Module, kind: Any) -> bool:
    try:
        Zero1(module, kind)
    except ValueError:
        return False
    return True
