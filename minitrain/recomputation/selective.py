"""Selective recomputation: only the core of attention is computed again, which saves much memory and costs little.

**Idea.** Of all that a block keeps, the s × s scores of attention grow with the square of the sequence, and the two
products that need them are a small part of the block's work. So the core, softmax(QKᵀ/√d)V, is computed again from
query, key and value, which are kept anyway.

**Source.** Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", §5.
**Cost.** 4bs²h operations per block, 0.9 % of a step for GPT-3. A block keeps 16·bsh elements and some small ones,
without the abs² scores.
The full form, `minitrain.recomputation.full.selective`, finds the cores in any model, also in tensor-parallel layers. A
fused kernel (FlashAttention) does the same inside itself.
"""

from __future__ import annotations

from minitrain.models.gpt import GPT
from minitrain.recomputation import checkpoint


def recompute(gpt: GPT) -> None:
    """Have the core of each block's attention keep query, key and value only."""
    # Each is a module from (query, key, value) to a tensor, all (batch, heads, seq, head).
    checkpoint.recompute(block.get_submodule("attention.core") for block in gpt.blocks)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
