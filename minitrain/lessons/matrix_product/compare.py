"""One split product beside the same on one device: the claims of by_data, by_columns and by_rows.

Every rank makes all of X, W and ∂Y from one seed, and so knows by itself what one device would get. Their elements are
whole numbers, so that sums are exact in any order and the two must agree in every bit.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from minitrain.comm.ledger import Ledger
from minitrain.comm.memory import storage_bytes
from minitrain.comm.world import World
from minitrain.lessons.pictures import matrix_product as pictures
from minitrain.lessons.rows import Claim, Rows

# Source, and bytes held, sent forward and sent backward; M, K, N are rows, inner, columns.
FORMULAS = {
    "by_data": ("Li et al. 2020, §2.2", "4·(M_r·K + K·N)", "0", "(n−1)·4·K·N in n−1 messages"),
    "by_columns": ("Shoeybi et al. 2019, §3", "4·(M·K + K·N_r)", "0", "(n−1)·4·M·K in n−1 messages"),
    "by_rows": ("Shoeybi et al. 2019, §3", "4·(M·K_r + K_r·N)", "(n−1)·4·M·N in n−1 messages", "0"),
}


def compare(world: World, split: ModuleType, cost: Callable, *sizes: int, forward: Any = None) -> list[Claim]:
    """Run a split product forward and backward, and claim what a rank holds and sends, and one device's numbers.

    `sizes` are rows of X, its columns, and columns of W. The same is claimed of sizes of which no two are equal, in
    float64, where a wrong letter in a formula shows. `forward` takes the place of the split's own.
    """
    source, held, *sent = FORMULAS[cost.__name__]
    rows = Rows(source)
    for (m, k, n), dtype in ((sizes, torch.float32), ((11, 7, 13), torch.float64)):
        case, predicted = f"sizes {(m, k, n)}, {dtype}", cost(m, k, n, world.size, world.rank, dtype.itemsize)
        whole_x, whole_w, whole_grad_y = (each.to(dtype) for each in whole_numbers(m, k, n, world.device))
        x, w, grad_y = split.hold(whole_x, whole_w, whole_grad_y, world.rank, world.size)
        rows.add("bytes held of X and W", held, predicted.held, storage_bytes([x, w]), case=case)
        with Ledger() as there:
            y = (forward or split.forward)(x, w)
        with Ledger() as back:
            grad_x, grad_w = split.backward(grad_y, x, w)
        ways = ("forward", predicted.forward, there), ("backward", predicted.backward, back)
        for (way, size, ledger), formula in zip(ways, sent, strict=True):
            what, messages = f"bytes sent {way}, and messages", predicted.messages if size else 0
            rows.add(what, formula, size, ledger.sent, case=case)
            rows.add(what, formula, messages, ledger.messages, "messages", case=f"{case}: messages")
        # Gradients are cut as their tensors are.
        single = whole_grad_y @ whole_w.T, whole_x.T @ whole_grad_y, whole_x @ whole_w
        right = split.hold(*single, world.rank, world.size)
        rows.equal("elements of Y, ∂X and ∂W that differ from one device's", (grad_x, grad_w, y), right, case=case)
    world.figure(lambda: pictures.splits(*sizes, ranks=world.size))
    return rows.claims()


def whole_numbers(rows: int, inner: int, columns: int, device: torch.device | str = "cpu") -> tuple[Tensor, ...]:
    """X, W and ∂Y of small whole numbers, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, inner), (inner, columns), (rows, columns))
    return tuple(torch.randint(-4, 5, shape, generator=generator).float().to(device) for shape in shapes)
