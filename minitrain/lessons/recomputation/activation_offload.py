"""The lesson of `minitrain.recomputation.activation_offload`: bytes that cross or stay, and equal gradients."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu

from minitrain.comm import World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import recomputation as costs
from minitrain.costs.memory import gpt_layer_activations
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.recomputation import common as lesson
from minitrain.lessons.zero.offload import Crossings
from minitrain.models.gpt import GPT
from minitrain.recomputation.activation_offload import Offload

VDNN = "Rhu et al. 2016, §3"


class AtOnce:
    """A reader that reads before it returns, so that counters of this thread see it; and a diary.

    Args:
        side: The stream of copies, which a reader's thread would have as its own.

    Attributes:
        fetches: How many blocks' activations were fetched.
        ahead: Fetches that began while another block's were on the device.
        most: Most bytes on the device at once.
    """

    def __init__(self, side: torch.cuda.Stream | None) -> None:
        self._side = side
        self.fetches = self.ahead = self.most = 0
        self._fetched: list[tuple[ref[Future[list[Tensor]]], int]] = []

    def submit(self, read: Callable[..., list[Tensor]], *arguments: Any) -> Future[list[Tensor]]:
        # A shelf holds what it fetched until autograd lets go of the shelf.
        self._fetched = [each for each in self._fetched if each[0]() is not None]
        future: Future[list[Tensor]] = Future()
        with torch.cuda.stream(self._side):
            tensors = read(*arguments)
        future.set_result(tensors)
        self.fetches += 1
        self.ahead += bool(self._fetched)
        self._fetched.append((ref(future), storage_bytes(tensors)))
        self.most = max(self.most, sum(size for _, size in self._fetched))
        return future


def step(gpt: GPT, trial: lesson.Trial) -> list[Tensor]:
    """The gradients of one step."""
    for parameter in gpt.parameters():
        parameter.grad = None
    lesson.loss(gpt, trial.tokens()).backward()
    return [parameter.grad for parameter in gpt.parameters() if parameter.grad is not None]


def different(found: list[Tensor], right: list[Tensor]) -> int:
    return sum(int((one != other).sum()) for one, other in zip(found, right, strict=True))


def demo(
    world: World, layers: int = 4, hidden: int = 32, heads: int = 4, batch: int = 2, sequence: int = 32
) -> list[Claim]:
    """Has activations wait on the host; the table shows what crosses, and what is on the device.

    Args:
        layers: Blocks of the GPT.
        hidden: Width of the residual stream.
        heads: Attention heads.
        batch: Sequences in each rank's batch.
        sequence: Tokens in a sequence.
    """
    trial = lesson.Trial(world, layers, hidden, heads, batch, sequence)
    right = step(trial.gpt(), trial)
    layer = sum(gpt_layer_activations(batch, sequence, hidden, heads, fused=False).values())
    out, back, most, ahead, same = {}, {}, {}, {}, {}
    for count in (layers, 1):
        gpt = trial.gpt()
        case = f"L = {count}"
        offload = Offload(list(gpt.blocks)[:count])
        offload.reader = diary = AtOnce(offload.side)  # type: ignore[assignment]
        step(gpt, trial)
        diary.fetches = diary.ahead = diary.most = 0
        with Crossings([]) as crossings:
            found = step(gpt, trial)
        out[case] = Claim("", "4L(16bsh + 4bs + abs² + s²/4)", count * layer, crossings.out, "B", VDNN)
        back[case] = Claim("", "the same", count * layer, crossings.back, "B", VDNN)
        predicted = costs.offloaded_at_once(count, layer)
        most[case] = Claim("", "two blocks'", predicted, diary.most, "B", VDNN)
        ahead[case] = Claim("", "L − 1", count - 1, diary.ahead, "1", VDNN)
        same[f"fetched at once, {case}"] = equal(found, right)
    gpt = trial.gpt()
    Offload(gpt.blocks)
    same["fetched by a thread"] = equal(step(gpt, trial), right)
    with world.timed("a step, activations on the host"):
        step(gpt, trial)
    gpt = trial.gpt()
    with save_on_cpu():
        same["torch's save_on_cpu"] = equal(step(gpt, trial), right)
    with world.timed("a step, torch's save_on_cpu"), save_on_cpu():
        step(gpt, trial)
    return [
        fold("bytes of activations that go to the host in forward", out, key=True),
        fold("bytes that come back in backward", back, key=True),
        fold("most bytes of them on the device in backward", most, key=True),
        fold("fetches that begin while another block goes backward", ahead, key=True),
        fold("elements of gradients that differ from those of activations that stay", same, key=True),
    ]


def equal(found: list[Tensor], right: list[Tensor]) -> Claim:
    return Claim("", "∇ = ∇ of kept", 0, different(found, right), "elements", "derived", "compared")
