"""The full form of `minitrain.zero.stage3` adds any module, and sends gradients while backward goes on.

Open `zero/full/stage2.py` first, then this file, `zero/full/unsharded_unit.py`, and `zero/full/unshard_hooks.py`, which
notices when a unit's forward and backward begin and end.

**Cost.** During the step a rank holds the root's parameters (those outside all units, with a tied embedding), two
units', and the lines of gradients of stage 2. Bytes: `minitrain.costs.zero.step_traffic`. FSDP keeps the root's
parameters from forward to backward, which saves one of its two gatherings; here they are freed like all others, so that
the formula is the paper's.
Also called fully sharded data parallelism: `FULL_SHARD` of FSDP, `fully_shard` of FSDP2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from minitrain.zero.full.flat_shards import Unit
from minitrain.zero.full.stage2 import Collector, Zero2
from minitrain.zero.full.unshard_hooks import UnshardHooks


class Event(NamedTuple):
    """What happened to a unit's parameters or gradients.

    Attributes:
        what: "gather" (started), "forward" and "backward" (each begins, with its parameters in memory), "free",
            "gradient" (the first of its gradients has arrived), "reduce-scatter" (started), "shard" (this rank has its
            part of the mean, and the rest is freed).
        unit: The unit's name in the module, or "root".
    """

    what: str
    unit: str


class Zero3(Zero2):
    """Divides parameters, gradients and optimizer states over the ranks.

    Between its uses a parameter has no elements, so its shape is (0,): parameters are in memory for the forward and
    backward of the unit that they belong to, and other code cannot read them. The results of forward may be nested in
    containers of any kind that `torch.utils._pytree` knows, and in dataclasses. Gradients can only reach a unit through
    what it returns, not through tensors that it keeps elsewhere. All ranks must call the same units in the same order.

    `full_state_dict()` gives the module's parameters; its own `state_dict()` is refused. Evaluate under
    `torch.no_grad()`: a unit's gradients are sent when all its calls have gone backward, and if one never does, they
    wait, unsharded, for `synchronize()`.

    Attributes:
        unshard_hooks: They gather and free; `unshard_hooks.prefetch = False` holds one unit less.
        events: None, or a list that you put there; it is filled with what happens to which unit.

    Raises:
        RuntimeError: In forward and backward, with torch's debug level above OFF: ranks call different units. In
            backward, with `create_graph=True`.

    Examples:
        >>> from minitrain.zero import Zero3
        >>> model = Zero3(model, torch.optim.AdamW, lr=0.01)
        >>> cross_entropy(model(tokens), targets).backward()
        >>> model.synchronize()
        >>> model.step()
        >>> weights = model.full_state_dict()  # on every rank
    """

    shards_parameters = True
    unshard_hooks_class: type[UnshardHooks] = UnshardHooks

    def _prepare(self) -> None:
        super()._prepare()
        self.events: list[Event] | None = None
        self.unshard_hooks = self.unshard_hooks_class(self.units, self.comm, self._reduce, self._note)
        self._unsharded = {id(line): each for each in self.unshard_hooks.units for line in each.unit.lines}
        self._unsent = set(self._collectors)  # whose gradients have not been sent in this micro-batch
        self._full = False  # in full_state_dict()
        for unit in self.units:
            # Of every unit, as a block's own state dict would be empty tensors, too.
            unit.module.register_state_dict_pre_hook(self._before_saving)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, also those that an exception in the middle of backward has left behind."""
        # A message that is in flight reads and writes its line.
        self._wait()
        super().zero_grad(set_to_none)
        for collector in self._collectors:
            if collector.flat is not None:
                collector.take()
                collector.missing = set(collector.line.parameters)
        self._unsent = set(self._collectors)

    def full_state_dict(self) -> dict[str, Any]:
        """The state dict of the plain module, on every rank, gathered; every rank must call it."""
        # Buffers and names come from the module's own state dict, which is refused otherwise.
        self._full = True
        try:
            return super().full_state_dict()
        finally:
            self._full = False

    def _arrive(self, number: int, name: str, parameter: Tensor) -> None:
        if self._collectors[number].flat is None:
            self._note("gradient", self._name(self._collectors[number]))
        super()._arrive(number, name, parameter)

    def _check_first(self, collector: Collector, name: str) -> None:
        """A second gradient before the line has left is added to the first."""

    def _advance(self) -> None:
        """Nothing is started when a line is full; `_reduce` starts it when the unit's last call has gone backward."""
        # A line may be full earlier on one rank than on another, but all ranks must start reduce-scatters at the same
        # places between the gatherings.

    @torch.no_grad()
    def _reduce(self, unit: Unit) -> None:
        """All calls of a unit have gone backward: its gradients are complete."""
        for collector in self._collectors:
            if self._unsharded[id(collector.line)].unit is unit:
                self._start(collector)

    def _start(self, collector: Collector) -> None:
        super()._start(collector)
        collector.missing = set(collector.line.parameters)  # of another backward, perhaps in the same micro-batch
        self._unsent.discard(collector)
        self._note("reduce-scatter", self._name(collector))

    def _keep(self, collector: Collector, part: Tensor) -> None:
        super()._keep(collector, part)
        self._note("shard", self._name(collector))

    @torch.no_grad()
    def _finish_micro_batch(self) -> None:
        """Start what has not been sent: units without a call, and with calls that have not gone backward."""
        for collector in self._collectors:
            if collector in self._unsent or self._unsharded[id(collector.line)].pending_backwards:
                self._start(collector)
        self._unsent = set(self._collectors)
        self.unshard_hooks.forget_pending_backwards()

    def _name(self, collector: Collector) -> str:
        return self._unsharded[id(collector.line)].unit.name

    def _all_gather_parameters(self) -> None:
        """Nothing to gather: no call holds unsharded parameters."""
        # Autograd did not see the shards change, and a graph from before the step must raise in backward.
        for line in self._trainable:
            torch.autograd.graph.increment_version(line.parameters.values())

    def _note(self, what: str, unit: str) -> None:
        if self.events is not None:
            self.events.append(Event(what, unit))

    def _before_saving(self, *_: Any) -> None:
        if not self._full:
            raise RuntimeError("the module's parameters are sharded; use full_state_dict() of its wrapper")
