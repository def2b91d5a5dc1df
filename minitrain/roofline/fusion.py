"""Operator fusion: several operations in one pass over memory, here bias, GELU and dropout of an MLP.

**Idea.** Each of the three does a few operations per number, so its time is that of moving the bytes. One after the
other, they read and write the whole tensor three times. Fused, a tile of it is read once, goes through all three in
fast memory (a CPU's cache, a GPU's registers), and is written once.

**Source.** Narayanan et al. 2021, §4.2, for these operations; Ivanov et al. 2021, "Data movement is all you need".
**Cost.** For N numbers of w bytes, 7wN bytes one after the other, and 3wN fused. The results have the same bits.
A kernel on a GPU also draws the mask itself, which leaves 2wN. Products that end with such operations in the same
kernel have an epilogue; FlashAttention fuses two products and a softmax, by tiles of them.
Also called kernel fusion, loop fusion.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode


def one_by_one(x: Tensor, bias: Tensor, keep: Tensor) -> Tensor:
    """dropout(gelu(x + bias)); `keep` is 0 where a number is dropped, and 1 / (1 − p) elsewhere."""
    x = x + bias  # (rows, columns)
    x = F.gelu(x)
    return x * keep


def fused(x: Tensor, bias: Tensor, keep: Tensor, rows: int) -> Tensor:
    """The same, a tile of `rows` rows at a time."""
    y = torch.empty_like(x)
    for tile, kept, out in zip(x.split(rows), keep.split(rows), y.split(rows), strict=True):
        # What is between the three operations is as small as a tile, and never leaves fast memory.
        torch.mul(F.gelu(tile + bias), kept, out=out)  # (rows of a tile, columns)
    return y


class Moved(TorchDispatchMode):
    """`with Moved(fast) as moved: fused(…)`, then `moved.bytes`: those read from main memory, and written to it.

    Args:
        fast: Bytes of the fast memory. A tensor stays there if all memory of which it is a view fits.
    """

    def __init__(self, fast: int):
        super().__init__()
        self.fast, self.bytes = fast, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        # A view moves nothing, and new memory is not written until it has contents.
        if not func.is_view and func is not torch.ops.aten.empty_like.default:
            # What goes in is read, and what comes out is written.
            tensors = [each for each in (*args, result) if isinstance(each, Tensor)]
            self.bytes += sum(each.nbytes for each in tensors if each.untyped_storage().nbytes() > self.fast)
        return result


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
