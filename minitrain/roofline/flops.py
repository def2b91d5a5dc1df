"""Counts the operations of matrix products, and the bytes that they move at least, as they are called.

**Idea.** Whatever a model is made of, its work ends in a few of torch's own operations. A dispatch mode sees each of
them, also in backward, with its tensors. Their shapes say how many multiplications and additions there are.

**Source.** Kaplan et al. 2020, "Scaling laws for neural language models", §2.1, for what counts: products only.
**Cost.** Some microseconds for each operation of torch.
torch's own, `torch.utils.flop_counter.FlopCounterMode`, also knows convolutions and modules. It counts the fused
attention of GPUs as here, and that of CPUs not at all.
FLOPs per byte are also called arithmetic intensity, or operational intensity.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that multiply two matrices, or stacks of them -> arguments before the first factor.
PRODUCTS = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1}


class Call(NamedTuple):
    kind: str  # "matrix", or "attention": products of activations with each other
    flops: int
    bytes: int


class Flops(TorchDispatchMode):
    """`with Flops() as flops: model(x).backward()`, then `flops.total`, `flops.by_kind()` and `flops.calls`."""

    def __init__(self):
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.strip("_")  # "addmm_" adds in place
        outputs = result if isinstance(result, tuple) else (result,)
        # What goes in is read at least once, and what comes out is written.
        moved = sum(each.nbytes for each in (*args, *outputs) if isinstance(each, Tensor))
        if name in PRODUCTS:
            a, b = args[PRODUCTS[name] :][:2]  # (…, m, k) and (…, k, n)
            kind = "matrix" if a.dim() == 2 else "attention"
            # For each of m · n results k products and k sums: 2mkn.
            self.add(kind, 2 * a.numel() * b.shape[-1], moved)
        elif "scaled_dot_product" in name:
            backward = name.endswith("backward")
            query, key = args[1:3] if backward else args[:2]  # (batch, heads, seq, head)
            # Forward has two products. Backward has two for each of them, and computes the scores again.
            self.add("attention", (5 if backward else 2) * 2 * query.numel() * key.shape[-2], moved)
        return result

    def add(self, kind: str, flops: int, moved: int) -> None:
        self.calls.append(Call(kind, flops, moved))

    def by_kind(self) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for call in self.calls:
            counted[call.kind] += call.flops
        return dict(counted)

    @property
    def total(self) -> int:
        return sum(call.flops for call in self.calls)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
