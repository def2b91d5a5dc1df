"""The lesson of `minitrain.recomputation.activation_offload`: bytes that cross or stay, and equal gradients."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from weakref import ref

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import recomputation as costs
from minitrain.costs.memory import gpt_layer_activations
from minitrain.lessons.recomputation import common as lesson
from minitrain.lessons.rows import Claim, Rows
from minitrain.recomputation.activation_offload import Offload


class AtOnce:
    """A reader that reads before it returns, on the stream of copies, and keeps a diary.

    Attributes:
        fetches: How many blocks' activations were fetched.
        ahead: Fetches that began while another block's were on the device.
        most: Most bytes on the device at once.
        out: Bytes that had gone to the host.
    """

    def __init__(self, side: torch.cuda.Stream | None) -> None:
        self._side = side
        self.fetches = self.ahead = self.most = self.out = 0
        self._fetched: list[tuple[ref[Future[list[Tensor]]], int]] = []

    def submit(self, read: Callable[..., list[Tensor]], room: list[Tensor], host: list[Tensor]) -> Future[list[Tensor]]:
        # A shelf holds what it fetched until autograd lets go of the shelf.
        self._fetched = [each for each in self._fetched if each[0]() is not None]
        future: Future[list[Tensor]] = Future()
        with torch.cuda.stream(self._side):
            tensors = read(room, host)
        future.set_result(tensors)
        self.fetches += 1
        self.ahead += bool(self._fetched)
        self._fetched.append((ref(future), storage_bytes(tensors)))
        self.most = max(self.most, sum(size for _, size in self._fetched))
        self.out += storage_bytes(host)
        return future


def demo(world: World) -> list[Claim]:
    """Has activations wait on the host; the table shows what crosses, and what is on the device."""
    layers, heads, (batch, sequence, hidden) = 4, 4, (2, 32, 32)
    rows, trial = Rows("Rhu et al. 2016, §3"), lesson.Trial(world, layers, hidden, heads, batch, sequence)
    block = sum(gpt_layer_activations(batch, sequence, hidden, heads, fused=False).values())
    gpt = trial.gpt()
    offload = Offload(gpt.blocks)
    offload.reader = diary = AtOnce(offload.side)  # type: ignore[assignment]
    found = lesson.measure(gpt, *trial.tokens()).gradients
    formula = "4L(16bsh + 4bs + abs² + s²/4)"
    rows.add("bytes of activations that go to the host in forward", formula, layers * block, diary.out)
    most = costs.offloaded_at_once(layers, block)
    rows.add("most bytes of them on the device in backward", "two blocks'", most, diary.most)
    rows.add("fetches that begin while another block goes backward", "L − 1", layers - 1, diary.ahead, "1")
    what = "elements of gradients that differ from those of activations that stay"
    rows.equal(what, found, trial.step().gradients, "∇ = ∇ of kept")
    return rows.claims()
