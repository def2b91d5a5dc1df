"""One argument for all that a full form must know about its ranks: the group, the carrier, and whether to check."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch.distributed as dist
from torch import Tensor

from minitrain.comm import native
from minitrain.comm.control import checking
from minitrain.comm.messages import Handle


@runtime_checkable
class Collectives(Protocol):
    """Who carries tensors: a module such as `minitrain.comm.native` or `minitrain.collectives.full.ring`."""

    def all_reduce(self, tensor: Tensor, group: dist.ProcessGroup | None, *, check: bool | None) -> Handle: ...

    def reduce_scatter(self, tensor: Tensor, group: dist.ProcessGroup | None, *, check: bool | None) -> Handle: ...

    def all_gather(self, tensor: Tensor, group: dist.ProcessGroup | None, *, check: bool | None) -> Handle: ...

    def broadcast(
        self, tensor: Tensor, source: int, group: dist.ProcessGroup | None, *, check: bool | None
    ) -> Handle: ...


@dataclass(frozen=True)
class Comm:
    """The ranks that talk, and how. Full forms take one as `comm`; a process group alone, or None, works as well.

    Attributes:
        group: The ranks; None means everyone.
        collectives: Who carries tensors: torch's own, or `minitrain.collectives.full.ring` to let the ledger see every
            byte.
        check: Compare what ranks bring before it is sent. It costs an extra round of small messages. None: in demos and
            notebooks only.

    Raises:
        ValueError: This rank is not in the group.
    """

    group: dist.ProcessGroup | None = None
    collectives: Collectives = native
    check: bool | None = None

    def __post_init__(self) -> None:
        if dist.get_rank(self.group) < 0:
            raise ValueError(
                f"group: this rank ({dist.get_rank()}) is not in it; only its members may make or call this"
            )

    def __deepcopy__(self, memo: dict[int, object]) -> Comm:
        return self  # a process group cannot be copied, and a copied model talks to the same ranks

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def ranks(self) -> int:
        return dist.get_world_size(self.group)

    @property
    def checks(self) -> bool:
        """Whether ranks compare what they bring."""
        return checking(self.check)

    @property
    def unchecked(self) -> Comm:
        """The same ranks, for what has been compared already, or must be equal by what was."""
        return self if self.check is False else replace(self, check=False)

    def all_reduce(self, tensor: Tensor) -> Handle:
        """Add over all ranks, in place: everyone gets the sum."""
        return self.collectives.all_reduce(tensor, self.group, check=self.check)

    def reduce_scatter(self, tensor: Tensor) -> Handle:
        """Add over all ranks: rank r gets chunk r of the sum, a view of `tensor`."""
        return self.collectives.reduce_scatter(tensor, self.group, check=self.check)

    def all_gather(self, tensor: Tensor) -> Handle:
        """Rank r brings chunk r of `tensor`, and everyone gets all chunks, in place."""
        return self.collectives.all_gather(tensor, self.group, check=self.check)

    def broadcast(self, tensor: Tensor, source: int = 0) -> Handle:
        """Copy the tensor of rank `source` to all, in place."""
        return self.collectives.broadcast(tensor, source, self.group, check=self.check)


AnyComm = Comm | dist.ProcessGroup | None


def as_comm(comm: AnyComm) -> Comm:
    """The `Comm` that was meant: itself, the ranks of a process group, or everyone."""
    return comm if isinstance(comm, Comm) else Comm(comm)
