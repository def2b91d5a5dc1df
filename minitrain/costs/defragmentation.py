"""The memory that fragments: how many bytes forward needs with and without a region for checkpoints.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", §6.3. L blocks, Tₖ
bytes of a block's temporary activations, c bytes of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence


def needed_with_region(temporaries: Sequence[int], checkpoint: int) -> int:
    """Bytes that forward needs: Lc + max Tₖ + c, the region, and a block's temporaries with its output."""
    return len(temporaries) * checkpoint + max(temporaries) + checkpoint


def needed_at_worst(temporaries: Sequence[int], checkpoint: int) -> int:
    """Lc + Σ Tₖ bytes without a region, where no temporary or checkpoint fits into the gap of an earlier temporary.

    Raises:
        ValueError: The temporaries do not grow from block to block, or one is not smaller than a checkpoint.
    """
    growing = all(a < b for a, b in zip(temporaries, temporaries[1:], strict=False))
    if not growing or max(temporaries) >= checkpoint:
        raise ValueError(f"temporaries={list(temporaries)} must grow and stay below checkpoint={checkpoint}")
    return len(temporaries) * checkpoint + sum(temporaries)
