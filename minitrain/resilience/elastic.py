"""Elastic: processes join a running training or leave it, and those that remain form a new world in place.

**Idea.** Who takes part is settled in a store that all processes reach: each takes a ticket, the first waits until the
least have come and then a little longer (the last call), and writes down who is in. Such a settlement is a generation.
Ranks are given anew in each, furthest trained first, so that rank 0 has the state that newcomers need. Newcomers wait
at the generation that runs; between two steps its members look, and go on to the next one, into which they let them.

**Source.** PyTorch's torchelastic, dynamic rendezvous: at a change it ends all processes and starts them again, from a
checkpoint. Elastic Horovod (Horovod's user guide, "Elastic Horovod"): in place, as here, rank 0 broadcasts its state.
**Sent.** A few short values through the store; per generation the state from rank 0; per step one byte, the look.
**Cost.** The last call, in which nobody trains. The store must outlive the members, so it belongs to a process that
does not train. `form` makes worlds of gloo.
Also called rendezvous, membership, agent and store (torchelastic), driver (Horovod).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from minitrain.comm.messages import Group, broadcast


@dataclass(frozen=True)
class Generation:
    """Who takes part until somebody comes or goes: names in the order of ranks; `rank` is this process's."""

    number: int
    rank: int
    members: list[str]


class Rendezvous:
    """This process's way into a training: `join`, then steps as long as `newcomers` says no, then `join` again.

    Args:
        store: A `TCPStore` that all processes reach.
        name: Of this process, another one for each.
        least: Members that a generation needs.
        most: Members that it may have.
        last_call: Seconds that are left to come once the least are there; at the most it ends at once.
        patience: Seconds after which waiting is a TimeoutError.
    """

    def __init__(self, store: dist.Store, name: str, least: int, most: int, last_call: float, patience: float = 60.0):
        assert 1 <= least <= most, f"invalid: {least=}, {most=}"
        self.store, self.name, self.least, self.most = store, name, least, most
        self.last_call, self.patience = last_call, patience
        self.now: Generation | None = None

    def join(self, steps: int = 0) -> Generation:
        """Wait for the next generation and be a member; `steps`: how far this process's state has come."""
        number = self.now.number + 1 if self.now else 0
        while True:
            # The store adds for one after the other, so no two have the same ticket.
            ticket = self.store.add(f"{number}/tickets", 1)
            self.store.set(f"{number}/{ticket}", json.dumps([-steps, self.name]))
            if ticket == 1:
                self.close(number)
            members = json.loads(self.read(f"{number}/members"))
            if self.name in members:
                self.now = Generation(number, members.index(self.name), members)
                return self.now
            # Too late, or one too many. A member has the next one's first ticket: no generation is without a state.
            number += 1
            self.read(f"{number}/1")

    def close(self, number: int) -> None:
        """Wait for the others and write down who is in; one that comes afterwards has a ticket too high."""
        if (came := self.came(number, self.least, self.patience)) < self.least:
            raise TimeoutError(f"generation {number}: {came} of at least {self.least} came in {self.patience} s")
        # The last call: one member more is worth a little patience.
        came = self.came(number, self.most, self.last_call)
        # The furthest first, and by name among equals.
        entries = sorted(json.loads(self.read(f"{number}/{ticket}")) for ticket in range(1, came + 1))
        self.store.set(f"{number}/members", json.dumps([name for _, name in entries[: self.most]]))

    def came(self, number: int, enough: int, seconds: float) -> int:
        """How many have a ticket, as soon as they are enough or the time is over."""
        until = time.monotonic() + seconds
        while (tickets := self.store.add(f"{number}/tickets", 0)) < enough and time.monotonic() < until:
            time.sleep(0.005)
        return tickets

    def newcomers(self, group: Group = None, device: str | torch.device = "cpu") -> bool:
        """Whether others wait and there is room; rank 0 looks, so that all members hear the same at the same step."""
        assert self.now, "join first"
        size = len(self.now.members)
        # On the device whose tensors the group carries.
        found = torch.tensor(size < self.most and self.came(self.now.number, 0, 0.0) > size, device=device)
        # Had each looked by itself, some might go on a step and wait for those who do not.
        return bool(broadcast(found, 0, group).wait())

    def read(self, key: str) -> bytes:
        """A value of the store, once it has been written."""
        try:
            self.store.wait([key], timedelta(seconds=self.patience))
        except dist.DistStoreError:
            raise TimeoutError(f"{self.name}: nobody wrote {key!r} within {self.patience} s") from None
        return self.store.get(key)


def form(store: dist.Store, generation: Generation, seconds: float = 60.0) -> None:
    """Make a generation this process's world, in place of the one before; the process and its state live on."""
    if dist.is_initialized():
        dist.destroy_process_group()
    # Keys of its own: those of the world before are still in the store.
    own = dist.PrefixStore(f"world{generation.number}", store)
    size, limit = len(generation.members), timedelta(seconds=seconds)
    dist.init_process_group("gloo", store=own, rank=generation.rank, world_size=size, timeout=limit)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
