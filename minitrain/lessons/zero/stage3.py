"""The demo of `stage3`: what is gathered at once, peaks, calls, bytes sent, equality; and what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, Peak, World
from minitrain.comm.comm import Comm
from minitrain.costs import zero as costs
from minitrain.lessons.claims import Claim, as_key
from minitrain.lessons.zero import bars as lesson_bars
from minitrain.lessons.zero import common as lesson
from minitrain.lessons.zero import small
from minitrain.lessons.zero import step_time as lesson_time
from minitrain.zero import stage3
from minitrain.zero.full.flat_shards import Unit
from minitrain.zero.full.stage2 import Zero2
from minitrain.zero.full.stage3 import Zero3
from minitrain.zero.full.unshard_hooks import Call, UnshardHooks

if TYPE_CHECKING:
    from minitrain.zero.full.stage3 import Event, Zero3

FSDP = "Zhao et al. 2023"


# ---- the small form ----


def small_form(world: World, micro_batches: int) -> list[Claim]:
    """Claims on what the small form sends, holds and computes."""
    model = small.wrap(world, stage3.Zero3)
    sent = small.sent(world, 3, model, micro_batches)
    shards = [tensor for unit in model.units for tensor in (unit.flat, unit.shard)]
    return [
        sent,
        *as_key(small.held(world, 3, "parameters", shards)),
        small.held(world, 3, "optimizer states", lesson.optimizer_states(model.optimizer)),
        whole_at_once(world, model),
        small.like_full_form(world, stage3.Zero3, Zero3),
    ]


def whole_at_once(world: World, model: stage3.Zero3) -> Claim:
    """The claim on the most bytes of whole parameters in a step, looked at whenever a unit has got memory."""
    most = 0

    def watched(prefetch: Callable[[], Any]) -> Any:
        nonlocal most
        handle = prefetch()
        most = max(most, sum(unit.flat.untyped_storage().nbytes() for unit in model.units))
        return handle

    for unit in model.units:
        unit.prefetch = partial(watched, unit.prefetch)  # type: ignore[method-assign]
    small.step(world, model)
    shard = costs.shard_elements(small.WIDTH**2, world.size)
    what = "small form: most bytes of whole parameters at once"
    return Claim(what, "2 units of nsw", 2 * world.size * shard * 4, most, "B", f"{FSDP}, §3.2.1", key=True)


# ---- what is gathered at once ----


class Watch(list["Event"]):
    """Events, and the most bytes of lines in memory at any of them: `model.events = Watch(model)`."""

    def __init__(self, model: Zero3):
        super().__init__()
        self._model = model
        self.most = 0

    def append(self, event: Event) -> None:
        super().append(event)
        self.most = max(self.most, sum(line.flat.untyped_storage().nbytes() for line in self._model.lines))


def unit_bytes(unit: Unit) -> int:
    """Bytes of a unit's lines when they are gathered, from the shapes of its parameters."""
    return sum((line.partition.elements + line.partition.padding) * line.shard.element_size() for line in unit.lines)


def gathered_at_once(world: World, model: Zero3) -> Claim:
    """The claim on what is gathered at once in a step: the root, and one unit, or two that follow each other."""
    root, *units = (unit_bytes(unit) for unit in model.units)
    if model.unshard_hooks.prefetch:
        most = max((a + b for a, b in zip(units, units[1:], strict=False)), default=sum(units))
        how, formula = "the root and two units", "Ψ_root + max over k of Ψₖ + Ψₖ₊₁"
    else:
        most = max(units, default=0)
        how, formula = "the root and one unit, not prefetching", "Ψ_root + max Ψₖ"
    lesson.step(world, model)  # in which the order is learnt
    model.events = watch = Watch(model)
    lesson.step(world, model)
    model.events = None
    return Claim(f"bytes gathered at once: {how}", formula, root + most, watch.most, "B", f"{FSDP}, §3.2.1")


def calls(world: World, model: Zero3) -> list[Claim]:
    """Claims on the number of collectives in a step, for L lines."""
    with Ledger() as ledger:
        lesson.step(world, model)
    lines = len(model.lines)
    return [
        Claim("all-gathers in a step", "2L", 2 * lines, ledger.calls("all_gather"), "1", f"{FSDP}, §3.2.1"),
        Claim("reduce-scatters in a step", "L", lines, ledger.calls("reduce_scatter"), "1", f"{FSDP}, §3.2.1"),
    ]


def chain_peak(world: World, stage: type[Zero3], prefetch: bool, layers: int = 4, hidden: int = 512) -> Claim:
    """The claim on the peak of a step's forward, backward and synchronize, above what is held between steps.

    A chain of equal layers, each one matrix of S bytes, and one token, so that parameters and gradients are all that
    takes memory. At the peak, in backward, there are two layers' parameters; a layer's gradient as autograd has made
    it; the line into which it is copied; and the line before, which is given back when the next one leaves. Through the
    ring, whose receive buffers stay from the step before; gloo copies whole lines.
    """
    module = nn.Sequential(*(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))).to(world.device)
    model = stage(module, torch.optim.SGD, Comm(collectives=ring), lr=0.1)
    model.unshard_hooks.prefetch = prefetch
    inputs = torch.ones(1, hidden, device=world.device)

    def backward() -> None:
        model(inputs).sum().backward()
        model.synchronize()

    backward()  # makes the memory for gradients' shards, and learns the order
    with lesson.unchecked(), Peak(world.device) as peak:
        backward()
    units = 2 if prefetch else 1
    return Claim(
        f"peak of a step above what is held, {layers} layers of S bytes, {'' if prefetch else 'not '}prefetching",
        f"{units + 3}S: parameters {units}, gradients 1, lines of gradients 2",
        (units + 3) * unit_bytes(model.units[1]),
        peak.bytes,
        "B",
        f"{FSDP}, §3.4",
        tolerance=0.01,  # the activations of one token
        # CUDA's allocator does not split what is left of a block, up to 1 MiB.
        absolute=2**20 * units if world.device.type == "cuda" else 0,
    )


# ---- what is sent, and what comes out ----


def train(
    stage: type[Zero3],
    world: World,
    module: nn.Module,
    optimizer: type[torch.optim.Optimizer],
    group: dist.ProcessGroup | None,
    part: Callable[[int], tuple[Tensor, Tensor]],
    **options: Any,
) -> None:
    """Five steps, after which `module` has its parameters again, so that they can be compared."""
    model = stage(module, optimizer, group, **options)
    for number in range(5):
        model(*part(number))[1].backward()
        model.synchronize()
        model.step()
        model.zero_grad()
    full = model.full_state_dict()
    for name, parameter in module.named_parameters():
        parameter.data = full[name]


def like_stage2(world: World, stage: type[Zero3], layers: int, hidden: int) -> Claim:
    """The claim that five steps in bfloat16 give stage 2's float32 weights, to the last bit, on any number of ranks.

    Both send the same lines through the same collectives; when parameters are in memory changes no number.
    """
    full = []
    for each in (Zero2, stage):
        model = lesson.wrap(world, each, layers, hidden, torch.bfloat16)
        for number in range(5):
            lesson.step(world, model, number)
        full.append(model.full_state_dict())
    different = sum(int((value != full[1][name]).sum()) for name, value in full[0].items())
    what = "weights that differ from those of stage 2 after 5 steps of AdamW in bfloat16"
    return Claim(what, "θ_3 = θ_2", 0, different, "elements", "derived", how="compared")


# ---- break it ----


class OneFlag(UnshardHooks):
    """The wrong rule of *break it*: a unit that is unsharded needs nothing, and the first call to finish frees it.

    Where a layer is called twice in a row, the gradient between the two calls is the input's of the second and the
    output's of the first. Both hooks are called: the first finds the parameters in memory, the second frees them.
    """

    def _begin_backward(self, call: Call, moment: int, gradient: Tensor) -> None:
        if not call.unsharded.is_unsharded:
            super()._begin_backward(call, moment, gradient)


class Twice(nn.Module):
    """A layer that is called twice in a row, as where weights are shared over depth."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.shared = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        return self.shared[0](self.shared[0](self.first(x)))


def demo(world: World, layers: int = 4, hidden: int = 34, micro_batches: int = 2) -> list[Claim]:
    """Gathers parameters when they are needed; the table shows bytes held and sent, peaks, and torch's DDP.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
        micro_batches: A, the micro-batches of each rank in a step.
    """
    model = lesson.wrap(world, Zero3, layers, hidden)
    assert isinstance(model, Zero3)
    waiting = lesson.wrap(world, Zero3, layers, hidden)
    assert isinstance(waiting, Zero3)
    waiting.unshard_hooks.prefetch = False
    trained = partial(train, Zero3)
    times, spans = lesson_time.virtual_times(world, Zero3)
    bars = lesson_bars.bars(world, Zero3, layers, hidden)
    claims = [
        *small_form(world, micro_batches),
        *lesson.memory(world, Zero3, 3, layers, hidden),
        *lesson_bars.claims(bars, lesson.lines(model), lesson.small_gpt(world, 0, layers, hidden), world.rank),
        lesson.traffic(world, Zero3, 3, layers, hidden, micro_batches),
        *calls(world, model),
        gathered_at_once(world, model),
        gathered_at_once(world, waiting),
        *(chain_peak(world, Zero3, prefetch) for prefetch in (True, False)),
        *times,
        lesson.mean_of_parts(world, Zero3, layers, hidden),
        lesson.like_ddp(world, trained, layers, hidden),
        like_stage2(world, Zero3, layers, hidden),
    ]
    with world.timed("a step of forward, backward, synchronize and step"):
        lesson.step(world, model)
    world.figure(lambda: lesson_bars.picture(bars))
    return claims
