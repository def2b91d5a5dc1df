"""What `unshard_hooks` keeps track of: a unit's parameters, sharded or not, and the order in which units are needed."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from minitrain.comm.comm import Comm
from minitrain.comm.messages import Handle
from minitrain.zero.full.flat_shards import Unit


class UnshardedUnit:
    """A unit's parameters: gathered while at least one running call needs them, freed otherwise."""

    def __init__(self, unit: Unit):
        self.unit = unit
        self.active_calls = 0  # of the unit, running now, forward or backward
        self.pending_backwards = 0  # calls whose backward has yet to begin, or is running
        self._arriving: list[Handle] | None = None  # None: not even started
        self._places: list[dict[nn.Parameter, Tensor]] = []  # of each line: where a parameter lies when it is gathered
        for line in unit.lines:
            # torch makes no views of a storage without bytes, so the line is filled once, and freed below.
            line.allocate()
            views = line.partition.views(line.flat)
            self._places.append({parameter: views[name] for name, parameter in line.parameters.items()})
        self.reshard()

    @property
    def is_unsharded(self) -> bool:
        """Whether the parameters are gathered, or on their way."""
        return self._arriving is not None

    def unshard(self, comm: Comm) -> None:
        """Start gathering."""
        self._arriving = []
        for line in self.unit.lines:
            line.allocate()
            line.partition.shard(line.flat, line.rank).copy_(line.shard)
            if line.flat.numel():
                # One all-gather for this line: each rank brings its shard, and all get the parameters.
                self._arriving.append(comm.all_gather(line.flat))

    def wait_for_unshard(self) -> None:
        """Wait until the parameters have arrived."""
        assert self._arriving is not None
        while self._arriving:
            self._arriving.pop().wait()
        for places in self._places:
            for parameter, place in places.items():
                parameter.data = place

    def reshard(self) -> None:
        """Give the memory back. The parameters are empty now: reading freed memory would end the program."""
        # A message in flight would otherwise write into memory that is no longer ours.
        for handle in self._arriving or []:
            handle.wait()
        for line, places in zip(self.unit.lines, self._places, strict=True):
            nothing = line.flat[:0]  # of the same storage, which still shows where the parameter belongs
            for parameter in places:
                parameter.data = nothing
            line.free()
        self._arriving = None


@dataclass
class PrefetchOrder:
    """The order in which a pass goes through the units, learned in each pass for the next."""

    before: list[UnshardedUnit] = field(default_factory=list)
    now: list[UnshardedUnit] = field(default_factory=list)
    follows: bool = False  # whether this pass has so far followed the previous one

    def begin(self) -> None:
        """A new pass begins."""
        self.before, self.now, self.follows = self.now, [], True

    def next_after(self, unsharded: UnshardedUnit) -> UnshardedUnit | None:
        """Note that the pass is at `unsharded`; returns what followed there in the pass before."""
        place = len(self.now)
        self.now.append(unsharded)
        # Once a pass has left the path, places in it mean nothing: no guesses until the next pass.
        self.follows = self.follows and place < len(self.before) and self.before[place] is unsharded
        return self.before[place + 1] if self.follows and place + 1 < len(self.before) else None
