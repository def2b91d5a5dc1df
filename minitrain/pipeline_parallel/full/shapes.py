"""The shapes of the tensors that cross between stages: a receiver must know them before it can post a receive.

The first micro-batch that crosses a boundary is announced by a control message: shape and dtype of its tensors, and
which of them need a gradient. Micro-batches whose inputs have the same shapes and dtypes are of one kind, and are taken
to have equal shapes at every boundary. A gradient has the shape of its tensor and needs no announcement.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.control import control, seal_of
from minitrain.pipeline_parallel.full.nccl_order import Message

TAG = 1  # of announcements; virtual times, which travel on the same connections, have 0
SEALED = "shapes"  # the name under which announcements are sealed
PAGE = 512  # bytes of an announcement that travel at once


class TensorMeta(NamedTuple):
    """What a receiver must know about a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    needs_gradient: bool

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"


def metas(tensors: Sequence[Tensor]) -> list[TensorMeta]:
    """What a receiver must know about each of `tensors`."""
    return [TensorMeta(tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in tensors]


class Shapes:
    """The shapes that this rank knows in one step; `kinds` as in `Mail.begin`."""

    def __init__(self, group: dist.ProcessGroup | None, kinds: Sequence[int] | None):
        self._group, self._kinds = group, kinds or ()  # elsewhere the first announcement tells them
        self._outputs: dict[tuple[int, int], list[TensorMeta]] = {}  # (stage, kind) -> of its outputs
        self._gradients: dict[tuple[int, int], list[TensorMeta]] = {}  # (stage, micro-batch) -> its outputs' gradients
        self._announced: list[tuple[Any, Tensor]] = []

    def first_of_its_kind(self, microbatch: int) -> bool:
        """Whether no earlier micro-batch is of the same kind."""
        return self._kinds[microbatch] == microbatch

    def expect_gradients(self, stage: int, microbatch: int, outputs: Sequence[Tensor]) -> None:
        """Note for which outputs of a stage gradients will come."""
        wanted = [meta for meta in metas(outputs) if meta.needs_gradient]
        # A gradient has no gradient of its own.
        self._gradients[stage, microbatch] = [meta._replace(needs_gradient=False) for meta in wanted]

    def known(self, message: Message) -> bool:
        """Whether `of` need not wait for an announcement."""
        stage, kind, microbatch = message.made
        if kind == "F":
            # Before the first announcement a rank does not know the kinds, either.
            return bool(self._kinds) and (stage, self._kinds[microbatch]) in self._outputs
        return (message.needed.stage, microbatch) in self._gradients

    def of(self, message: Message) -> list[TensorMeta]:
        """The tensors of a message to this rank; waits for the announcement of the first one of its kind."""
        stage, kind, microbatch = message.made
        if kind != "F":
            return self._gradients.pop((message.needed.stage, microbatch))
        if not self.known(message):
            self._hear(stage, microbatch, message.source)
        return self._outputs[stage, self._kinds[microbatch]]

    def announce(self, message: Message, tensors: Sequence[Tensor]) -> None:
        """Tell the receiver the shapes of a stage's outputs if they are the first of their kind; else compare them."""
        stage, _, microbatch = message.made
        found, key = metas(tensors), (stage, self._kinds[microbatch])
        # Announced before: the receiver takes these shapes for granted, and could not notice others.
        if key in self._outputs:
            if self._outputs[key] != found:
                now, first = (", ".join(map(str, listed)) for listed in (found, self._outputs[key]))
                raise ValueError(
                    f"stage {stage} gave {now} for micro-batch {microbatch}, but {first} for micro-batch {key[1]}, "
                    "whose inputs look the same; the next stage cannot know that, so let shapes follow from the shapes "
                    "of the inputs alone"
                )
            return
        self._outputs[key] = found
        text = seal_of(self._group).close(SEALED, pickle.dumps((self._kinds, found)))
        # The first part has a fixed size, so that it can be received before its length is known.
        whole = len(text).to_bytes(8, "little") + text
        for part in (whole[:PAGE].ljust(PAGE), whole[PAGE:]):
            if part:
                page = torch.frombuffer(bytearray(part), dtype=torch.uint8)
                # The tensors' descriptions, to the rank that will receive them; seldom more than a page.
                # The page is kept with its handle, since gloo sends from this memory.
                self._announced.append((control(self._group).send([page], message.to, TAG), page))

    def end(self) -> None:
        """Wait until all announcements have left."""
        for work, _ in self._announced:
            work.wait()
        self._announced.clear()

    def _hear(self, stage: int, microbatch: int, source: int) -> None:
        """Wait for an announcement."""
        whole = b""
        size, end = PAGE, 0
        while size > 0:
            page = torch.empty(size, dtype=torch.uint8)
            # The announcement of `stage`, from its rank; a second part where one page is too short.
            control(self._group).recv([page], source, TAG).wait()
            whole += bytes(page.numpy())
            end = 8 + int.from_bytes(whole[:8], "little")
            size = end - len(whole)
        self._kinds, found = pickle.loads(seal_of(self._group).open(SEALED, whole[8:end]))
        self._outputs[stage, self._kinds[microbatch]] = found
