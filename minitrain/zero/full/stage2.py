"""The full form of `minitrain.zero.stage2` sends whole units, of any module, and checks what it is given.

**Idea.** A hook copies each gradient to its unit's line and frees it. A line is reduce-scattered once it is full and
the line before it is done. Without this *draining*, gradients that wait to be sent would pile up until all of them are
held, as in stage 1. All ranks start the lines in one order, from the last unit to the first.

Open `zero/full/sharded.py` first. Here `Collector` is a line of gradients, and `Zero2` decides when it is sent.
**Source.** Besides Rajbhandari et al. 2020: Zhao et al. 2023, "PyTorch FSDP", §3.4, for limiting what is in flight.
**Cost.** In backward also two lines of whole gradients: one that is filling, and one that is being sent. Bytes:
`minitrain.costs.zero.step_traffic`.
Near to it are `reshard_after_forward=False` of FSDP2, and DeepSpeed's stage 2, whose `overlap_comm` must drain, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Shaped
from torch import Tensor

from minitrain.comm.messages import Handle
from minitrain.data_parallel.full.gradient_hooks import call_when_accumulated
from minitrain.zero.full.flat_shards import FlatShard, check_dense
from minitrain.zero.full.sharded import Sharded


class Collector:
    """Collects the gradients of one line in `dtype`: in full while backward runs, then this rank's part of the mean.

    Attributes:
        missing: Parameters whose gradients have not arrived in this micro-batch.
        flat: The whole gradients, side by side; None before the first has arrived and after all have left.
        shard: This rank's part of the mean, added up over micro-batches.
        fresh: Whether nothing has been added to `shard` in this step.
    """

    def __init__(self, line: FlatShard, dtype: torch.dtype | None = None):
        self.line, self.dtype = line, dtype
        self.missing = set(line.parameters)
        self.flat: Tensor | None = None
        self.shard: Tensor | None = None
        self.fresh = True
        self._views: dict[str, Tensor] = {}

    def put(self, name: str, gradient: Tensor, scale: float) -> None:
        """Copy a gradient, times `scale`, to its place; a second one is added."""
        self._open()
        if name in self.missing:
            # Written and not added, since the memory has not been zeroed.
            torch.mul(gradient.to(self._views[name].dtype), scale, out=self._views[name])
            self.missing.remove(name)
        else:
            self._views[name].add_(gradient, alpha=scale)

    def take(self) -> Shaped[Tensor, " padded"]:
        """The whole line, with zeros where no gradient has arrived; from here on it belongs to the caller."""
        flat = self._open()
        for name in self.missing:
            self._views[name].zero_()  # this rank did not use it, others may have
        # The padding was undefined; a NaN in it would reach the optimizer.
        flat[self.line.partition.elements :].zero_()
        self.flat, self._views = None, {}
        return flat

    def add(self, part: Shaped[Tensor, " shard"]) -> None:
        """Add this rank's part of a micro-batch's mean gradient."""
        if self.shard is None:
            self.shard = torch.empty_like(part)
        if self.fresh:
            self.shard.copy_(part)
        else:
            self.shard.add_(part)
        self.fresh = False

    def _open(self) -> Tensor:
        if self.flat is None:
            partition = self.line.partition
            # The shard's own memory tells dtype and device also where stage 3 has freed the line.
            self.flat = self.line.shard.new_empty(partition.elements + partition.padding, dtype=self.dtype)
            self._views = partition.views(self.flat)
        return self.flat


class Zero2(Sharded):
    """Divides optimizer states and gradients over the ranks.

    Each micro-batch sends its gradients, those under `no_sync()` too, and ends with its own `no_sync()` block or with
    `synchronize()`. All ranks must enter the same number of them. After backward `.grad` is None: gradients are in
    `line.gradient`, 1/n of them, once `synchronize()` has been called.

    Attributes:
        drain: Whether a reduce-scatter must be done before the next is started. Set it to False to see its purpose.

    Raises:
        RuntimeError: In backward, when a parameter gets a second gradient in one micro-batch.

    Examples:
        >>> from minitrain.zero import Zero2
        >>> model = Zero2(model, torch.optim.AdamW, lr=0.01)
        >>> with model.no_sync():  # every micro-batch but the last
        ...     (cross_entropy(model(tokens), targets) / 2).backward()
        >>> (cross_entropy(model(tokens), targets) / 2).backward()
        >>> model.synchronize()
        >>> model.step()
    """

    drain = True

    def _prepare(self) -> None:
        # Backward reaches the last unit first.
        self._collectors = [Collector(line, self.reduce_dtype) for line in reversed(self._trainable)]
        self._started = 0  # lines of this micro-batch that have been started
        self._in_flight: list[tuple[Collector, Tensor, Handle]] = []
        self._hooked = [
            call_when_accumulated(parameter, self._arrive, number, name)
            for number, collector in enumerate(self._collectors)
            for name, parameter in collector.line.parameters.items()
        ]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """The backward of one micro-batch that is not the last of its step; its gradients are sent nonetheless."""
        yield
        self._finish_micro_batch()

    @torch.no_grad()
    def synchronize(self) -> None:
        """Make every gradient shard its mean over all ranks, after the last backward of a step; see `Sharded`."""
        self._check_unchanged()
        self._finish_micro_batch()
        # Between micro-batches a line may stay in flight; the optimizer needs them all.
        self._wait()
        for collector in self._collectors:
            collector.line.gradient = collector.shard

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad()
        for collector in self._collectors:
            collector.fresh = True  # the shard keeps its memory, which the next step overwrites

    @torch.no_grad()
    def _arrive(self, number: int, name: str, parameter: Tensor) -> None:
        """The hook: copy a gradient to its line, free it, and start what can be started."""
        collector = self._collectors[number]
        # Freed one by one: all gradients at once are what this stage avoids.
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        self._check_first(collector, name)
        check_dense(name, gradient)
        # 1/n before the sum, as DDP does: low precision then cannot overflow, and results are the same to the bit.
        collector.put(name, gradient.detach(), 1 / self.batch_ranks)
        del gradient  # before sending a line, which may need memory
        self._advance()

    def _check_first(self, collector: Collector, name: str) -> None:
        """Refuse a second gradient in one micro-batch: its line may have left with the first alone."""
        if name not in collector.missing:
            raise RuntimeError(
                f"{name} got a second gradient in one micro-batch; run backward of each micro-batch but the last in a "
                "no_sync() block of its own, and synchronize() after the last"
            )

    def _advance(self) -> None:
        """Start the lines that are full and next in turn."""
        while self._started < len(self._collectors) and not self._collectors[self._started].missing:
            self._start(self._collectors[self._started])

    def _start(self, collector: Collector) -> None:
        """Reduce-scatter a line; at most one reduce-scatter is in flight."""
        self._started += 1
        if self.drain:
            self._wait()  # so at most two lines are whole: this one, and the one that will fill next
        flat = collector.take()
        if flat.numel():
            # Every rank brings all gradients of the line and gets the mean of its own shard.
            handle = self.comm.reduce_scatter(flat)
        else:
            handle = Handle((), flat)
        self._in_flight.append((collector, flat, handle))

    def _wait(self) -> None:
        """Wait for all that is in flight, keep this rank's parts, and free the lines."""
        while self._in_flight:
            collector, flat, handle = self._in_flight.pop(0)
            handle.wait()
            self._keep(collector, collector.line.partition.shard(flat, self.rank))

    def _keep(self, collector: Collector, part: Shaped[Tensor, " shard"]) -> None:
        """Add this rank's part of a mean gradient to what it has of this step."""
        collector.add(part)

    @torch.no_grad()
    def _finish_micro_batch(self) -> None:
        """Start the lines that have not been: some parameter in them got no gradient here."""
        # They are sent even if nothing arrived here: other ranks have gradients for them, and wait.
        for collector in self._collectors[self._started :]:
            self._start(collector)
        self._started = 0
        for collector in self._collectors:
            collector.missing = set(collector.line.parameters)


class Undrained(Zero2):
    """Stage 2 with its typical mistake, for the lesson: gradients pile up until backward has ended."""

    drain = False
