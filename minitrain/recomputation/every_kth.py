"""Recomputation in segments: of every k-th block the input is kept, and k blocks are computed again together.

**Idea.** One input is kept for each segment of k blocks. But backward computes a whole segment again at once, and holds
all that its k blocks keep. Long segments make the first part small, and short ones the second. Where a layer keeps only
its input, the best k is √L, and the memory 2√L.

**Source.** Chen et al. 2016, "Training deep nets with sublinear memory cost", §4.1 and §4.3.
**Cost.** Forward once more, whatever k is. ⌈L/k⌉ inputs are kept; in backward, what k blocks keep as well.
Also called sublinear memory, checkpointing every k layers; Megatron-LM's `uniform` method, and
`checkpoint_sequential` (PyTorch).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from minitrain.recomputation.checkpoint import checkpoint


def run_in_segments(blocks: Iterable[nn.Module], x: Tensor, k: int) -> Tensor:
    """`blocks` one after another on `x`, as a model's forward calls them; each takes and gives a tensor."""
    chosen = list(blocks)
    for first in range(0, len(chosen), k):
        # k consecutive blocks; the last segment takes those that are left.
        segment = nn.Sequential(*chosen[first : first + k])
        # Only x is kept: what goes from block to block inside the segment is not.
        x = checkpoint(segment, x)
    return x


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
