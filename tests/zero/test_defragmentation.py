"""The allocator takes the first gap and never overlaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.zero.defragmentation import Memory

ACTIONS = st.lists(st.tuples(st.booleans(), st.integers(1, 30), st.integers(0, 100)), max_size=40)


@given(ACTIONS)
def test_tensors_never_overlap_and_gaps_are_the_rest(actions):
    memory, taken = Memory(100), {}
    for allocate, size, pick in actions:
        if allocate:
            # Byte by byte: the lowest place with `size` free bytes in a row.
            used = {byte for start, length in taken.items() for byte in range(start, start + length)}
            fits = [at for at in range(101 - size) if not used & set(range(at, at + size))]
            if fits:
                assert memory.allocate(size) == fits[0]
                taken[fits[0]] = size
            else:
                with pytest.raises(MemoryError, match=f"{size} bytes, with {100 - len(used)} free"):
                    memory.allocate(size)
        elif taken:
            start = sorted(taken)[pick % len(taken)]
            memory.free(start)
            del taken[start]
        used = {byte for start, length in taken.items() for byte in range(start, start + length)}
        free = {byte for start, length in memory.gaps() for byte in range(start, start + length)}
        assert not used & free and len(used) + len(free) == 100
        ends = [(start, start + length) for start, length in memory.gaps()]
        assert all(end < start for (_, end), (start, _) in zip(ends, ends[1:], strict=False)), "neighbors are one gap"
