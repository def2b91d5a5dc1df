"""The full form of `minitrain.zero.stage1` adds frozen and unused parameters, several dtypes, groups, and checks.

Open `zero/full/partition.py` first, then `zero/full/flat_shards.py`, `zero/full/sharded.py`, and this file.
**Source.** Besides Rajbhandari et al. 2020: Xu et al. 2020, who call it weight-update sharding.
**Sent.** 2Ψ in a step: `minitrain.costs.zero.step_traffic`.
**Cost.** `minitrain.costs.zero.held`.
As an optimizer behind any data parallelism, which sends 3Ψ: torch's `ZeroRedundancyOptimizer`. P_os in the paper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from minitrain.comm.messages import Handle
from minitrain.data_parallel.full.gradient_hooks import call_when_accumulated
from minitrain.zero.full.flat_shards import check_dense
from minitrain.zero.full.sharded import Sharded


class Zero1(Sharded):
    """Divides the optimizer states over the ranks.

    `synchronize()` overwrites the gradients' lines: this rank's part (`line.gradient`) is then the mean over ranks, and
    the rest is undefined until `zero_grad()`. It sends all lines, unless `send_in_backward` has them leave earlier.

    Examples:
        >>> from minitrain.zero import Zero1
        >>> model = Zero1(model, torch.optim.AdamW, lr=0.01)
        >>> cross_entropy(model(tokens), targets).backward()
        >>> model.synchronize()
        >>> norm = model.clip_grad_norm(1.0)
        >>> model.step()
    """

    def _prepare(self) -> None:
        self._flats = [torch.zeros_like(line.flat, dtype=self.reduce_dtype) for line in self._trainable]
        # `.grad` is such a view from the start, so autograd adds where the line is sent from, and nothing is copied.
        self._views = [line.partition.views(flat) for line, flat in zip(self._trainable, self._flats, strict=True)]
        self._turns: list[int] = []  # lines that leave during backward, in this order
        self._passes = 0
        self._begin_step()
        self._hand_out()

    def send_in_backward(self, passes: int, later: Collection[nn.Parameter] = ()) -> None:
        """From now on, send each line of gradients while backward goes on, as soon as it is complete.

        A line that is not complete when backward has ended, since some parameter was not used, leaves in
        `synchronize()`, as do its followers. Gradients must not be changed between backward and `synchronize()`.

        Args:
            passes: How often in a step a backward brings a parameter its gradient: the number of micro-batches.
            later: Parameters whose gradients are not complete after these; their lines leave in `synchronize()`.
        """
        names = [line.parameters.items() for line in self._trainable]
        apart = {id(parameter) for parameter in later}
        self._passes = passes
        # Backward completes the last lines first. All ranks use this order, since messages are matched by order.
        self._turns = [
            number for number, its in reversed([*enumerate(names)]) if not any(id(p) in apart for _, p in its)
        ]
        self._hooked = [
            call_when_accumulated(parameter, self._arrive, number, name)
            for number in self._turns
            for name, parameter in names[number]
        ]
        self._begin_step()

    def _begin_step(self) -> None:
        self._arrived: Counter[str] = Counter()
        self._missing = [len(line.parameters) for line in self._trainable]  # that have not got all their gradients
        self._next = 0  # of the lines in turn
        self._handles: dict[int, Handle] = {}

    @torch.no_grad()
    def _arrive(self, number: int, name: str, parameter: Tensor) -> None:
        """The hook: count a gradient, and start the lines that are complete and next in turn."""
        self._arrived[name] += 1
        if self._arrived[name] > self._passes:
            raise RuntimeError(
                f"{name} got more than passes={self._passes} gradients in a step, and has been sent; call "
                "synchronize() and zero_grad() before the next"
            )
        self._missing[number] -= self._arrived[name] == self._passes
        # A complete line waits for its turn: on another rank the one before it may be complete first.
        while self._next < len(self._turns) and not self._missing[self._turns[self._next]]:
            self._send(self._turns[self._next])
            self._next += 1

    @torch.no_grad()
    def synchronize(self) -> None:
        """Make every gradient shard its mean over all ranks, after the last backward of a step; see `Sharded`."""
        self._check_unchanged()
        if any(line.gradient is not None for line in self._trainable):
            raise RuntimeError("synchronize() was called before; call zero_grad() before the next backward")
        # First the rest of the turns, as a rank that has sent them in backward did; then all others.
        for number in dict.fromkeys([*self._turns[self._next :], *range(len(self._trainable))]):
            if number not in self._handles:
                self._send(number)
        for number, handle in self._handles.items():
            handle.wait()
            line = self._trainable[number]
            line.gradient = line.partition.shard(self._flats[number], self.rank)

    def _send(self, number: int) -> None:
        """Start a line on its way to the mean over ranks."""
        line, flat = self._trainable[number], self._flats[number]
        for name, view in self._views[number].items():
            self._collect(name, line.parameters[name], view)
        self._handles[number] = self._average(flat) if flat.numel() else Handle((), flat)

    def _average(self, flat: Shaped[Tensor, " padded"]) -> Handle:
        """Begin to make this rank's shard of a line of gradients its mean over ranks."""
        flat.mul_(1 / self.ranks)  # before the sum, as DDP does: low precision then cannot overflow
        # Every rank brings all gradients of the line and gets the mean of its own shard.
        return self.comm.reduce_scatter(flat)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad()
        for flat in self._flats:
            # Filled, not dropped, so that `.grad` stays where the line is sent from.
            flat.zero_()
        self._begin_step()
        self._hand_out()

    def _hand_out(self) -> None:
        for line, views in zip(self._trainable, self._views, strict=True):
            for name, view in views.items():
                if self.reduce_dtype:
                    line.parameters[name].grad_dtype = view.dtype  # autograd adds in it
                line.parameters[name].grad = view

    def _collect(self, name: str, parameter: nn.Parameter, view: Tensor) -> None:
        """Bring a gradient to its place, in case it was put elsewhere."""
        if parameter.grad is None:
            view.zero_()  # set to None by the user
            return
        check_dense(name, parameter.grad)
        if parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad)
        elif parameter.grad.stride() != view.stride():
            view.copy_(parameter.grad.clone())  # the same memory, read in another order
