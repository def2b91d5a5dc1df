"""Defragmentation (M_D of ZeRO-R): what lives long gets a region of its own, so that free memory stays in one piece.

**Idea.** With recomputation, forward makes two kinds of tensors in turn: a checkpoint, which lives until backward, and
temporary activations, which are freed within the block. Checkpoints that lie between them cut the free memory into
gaps. A large tensor then finds no gap, although the gaps together would hold it. So a region for all checkpoints is
allocated before forward, and each is copied into it.
**Source.** Rajbhandari et al. 2020, "ZeRO", §6.3; an allocator that takes the first gap: Knuth 1968, §2.5.
**Cost.** One copy of each checkpoint. In backward gradients of parameters live long, and those of activations do not.
Here memory is a row of bytes with their allocator, in plain Python. It needs no torch, and sends nothing.
Also called `contiguous_memory_optimization` (DeepSpeed).
"""

from __future__ import annotations

from collections.abc import Sequence


class Memory:
    """A row of bytes, of which `allocate` takes the first gap that is large enough."""

    def __init__(self, size: int):
        self.size = size
        self.taken: dict[int, int] = {}  # where each tensor starts, and its bytes

    def gaps(self) -> list[tuple[int, int]]:
        """Start and bytes of each free piece, from the lowest."""
        found, end = [], 0
        # A tensor without bytes after the last one, so that what is free there counts.
        for start, size in [*sorted(self.taken.items()), (self.size, 0)]:
            if start > end:
                found.append((end, start - end))
            end = start + size
        return found

    def allocate(self, size: int) -> int:
        """Where the new tensor starts. It stays there: pointers to it are in use, so nothing can be moved."""
        assert size > 0
        for start, free in self.gaps():
            if free >= size:
                self.taken[start] = size
                return start
        total = sum(free for _, free in self.gaps())
        raise MemoryError(f"no gap of {size} bytes, with {total} free")

    def free(self, start: int) -> None:
        # Neighboring gaps become one, because gaps are what lies between tensors.
        del self.taken[start]


def forward(memory: Memory, temporaries: Sequence[int], checkpoint: int, region: bool = False) -> None:
    """Run blocks: of each a checkpoint stays in memory.

    Args:
        memory: It may be in use.
        temporaries: Bytes of each block's temporary activations.
        checkpoint: Bytes of each block's checkpoint, which is its output.
        region: Whether checkpoints have a region of their own.
    """
    if region:
        # One long-lived tensor for all checkpoints, before anything short-lived is in memory.
        memory.allocate(checkpoint * len(temporaries))
    for size in temporaries:
        inside = memory.allocate(size)
        # The output is made while the temporaries are still needed, so it lies after them.
        output = memory.allocate(checkpoint)
        memory.free(inside)
        if region:
            # Its bytes are copied to its slot of the region, and nothing stays between the gaps.
            memory.free(output)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
