"""Flash checkpoints: every few steps into shared memory, which outlives a process, and into another node's memory.

**Idea.** Most failures end a process, not its node. Shared memory stays, and a process that takes the dead one's place
reads its state there. For the rest a rank of another node, the peer, has a copy. The disk is needed once in hundreds of
steps. Two slots take turns, so that one is complete at every moment; ranks load the newest step that all can have.

**Source.** Wang et al. 2023, "GEMINI", §4 (copies in other nodes' memory); Jiang et al. 2024, "MegaScale", §4.4.
**Sent.** A save sends S bytes to the peer. A load sends a few numbers, and S bytes to each rank whose node died.
**Cost.** 4S bytes of memory per rank: two slots, each with the rank's own shard of S bytes and another rank's.
The full form is the trainer's `--flash-every`, `minitrain.checkpointing.full.memory`.
Also called in-memory checkpoint (GEMINI), Flash Checkpoint (DLRover).
"""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_gather, exchange, rank_and_size

OWN, COPY, RUN, STEP = range(4)  # the head of a slot: two checksums, and what it is
NOTHING = -1


class Flash:
    """`save(step, shard)` every few steps, `load(shard)` after a failure, `free()` at the end.

    Args:
        folder: In this node's memory, such as one in /dev/shm, and open to no other user.
        shard: This rank's state, of the same size on all ranks.
        run: The number of the training. What another training has left is freed.
        apart: The ranks of a node, so that rank r's peer, r + apart, lies on another one.
        group: The ranks, with gloo, since NCCL sends nothing from a CPU's memory. None means everyone.
    """

    def __init__(self, folder: Path, shard: Tensor, run: int, apart: int = 1, group: Group = None):
        self.rank, ranks = rank_and_size(group)
        assert not shard.is_cuda, f"{shard.device=}: copy it to the CPU first"
        assert 1 <= apart <= ranks, f"{apart=}, but there are {ranks} ranks"
        self.group, self.apart = group, apart
        self.right, self.left = (self.rank + apart) % ranks, (self.rank - apart) % ranks
        self.files = [folder / f"{self.rank}.{kind}" for kind in ("heads", "slots")]
        # Memory with a name: it stays when the process ends, however it ends.
        self.heads = torch.from_file(str(self.files[0]), True, 8, dtype=torch.int64).view(2, 4)
        size = 4 * shard.nbytes
        found = self.files[1].stat().st_size if self.files[1].exists() else 0
        if (self.heads[:, RUN] != run).any() or found != size:
            # New, or of a dead training.
            self.files[1].unlink(missing_ok=True)
            self.heads.fill_(NOTHING)[:, RUN] = run
            with open(self.files[1], "wb") as file:
                # Zeros, so that it has its room: shared memory that runs out in a later write ends the process.
                file.writelines([bytes(shard.nbytes)] * 4)
        memory = torch.from_file(str(self.files[1]), True, size, dtype=torch.uint8)
        self.slots = memory.view(2, 2, shard.nbytes)  # (slots, own or peer's, bytes)

    def save(self, step: int, shard: Tensor) -> None:
        # The slot with the older step. Until its new content is complete, it counts as empty.
        slot = int(self.heads[:, STEP].argmin())
        self.heads[slot, STEP] = NOTHING
        own, copy = self.slots[slot]
        own.copy_(as_bytes(shard))
        exchange(own, self.right, copy, self.left, self.group).wait()
        self.heads[slot, OWN], self.heads[slot, COPY] = checksum(own), checksum(copy)
        # Last, since it is the step that makes a slot count.
        self.heads[slot, STEP] = step

    def load(self, shard: Tensor) -> int:
        """Fill the shard with the newest state that every rank can have; returns its step, or -1 if there is none."""
        sums = torch.tensor([[checksum(data) for data in slot] for slot in self.slots])
        have = self.heads[:, STEP:].where(self.heads[:, :2] == sums, NOTHING)
        every = all_gather(have[None], self.group).wait()  # (ranks, slots, own or copy): steps
        assert every is not None
        own, copies = every[:, :, OWN], every.roll(-self.apart, 0)[:, :, COPY]
        # The failure may have come when only some ranks had saved. So each has two steps to choose from.
        common = set.intersection(*map(set, torch.cat([own, copies], 1).tolist()))
        step = max(common, default=NOTHING)
        if step == NOTHING:
            return NOTHING
        lost = (own != step).all(1)
        mine = as_bytes(shard) if lost[self.rank] else shard.new_empty(0, dtype=torch.uint8)
        # To the left neighbor its own shard, if it has lost that; else nothing.
        theirs = self.slots[have[:, COPY] == step, COPY][: int(lost[self.left])].reshape(-1)
        exchange(theirs, self.left, mine, self.right, self.group).wait()
        if not lost[self.rank]:
            as_bytes(shard).copy_(self.slots[have[:, OWN] == step, OWN][0])
        # Newer ones belong to a past that is given up.
        self.heads[self.heads[:, STEP] > step, STEP] = NOTHING
        return step

    def free(self) -> None:
        for file in self.files:
            file.unlink(missing_ok=True)


def as_bytes(shard: Tensor) -> Tensor:
    return shard.detach().view(-1).view(torch.uint8)


def checksum(data: Tensor) -> int:
    return zlib.crc32(data.numpy().data)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
