"""Servers and workers: the first ranks of a group keep parameters, the others compute gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class Roles:
    """The division of a group's ranks, by their numbers within the group; None means everyone."""

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    group: dist.ProcessGroup | None = None

    @property
    def serves(self) -> bool:
        return dist.get_rank(self.group) in self.servers


def split_roles(servers: int = 1, group: dist.ProcessGroup | None = None) -> Roles:
    """Make the first `servers` ranks of a group servers and all others workers, of which there must be one at least."""
    ranks = dist.get_world_size(group)
    if not 1 <= servers < ranks:
        raise ValueError(
            f"servers={servers} must leave at least one server and one worker of {ranks} ranks; "
            + ("start at least 2 ranks" if ranks < 2 else "use 1" if ranks == 2 else f"use 1 to {ranks - 1}")
        )
    return Roles(tuple(range(servers)), tuple(range(servers, ranks)), group)
