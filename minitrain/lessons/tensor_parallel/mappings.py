"""What each operator sends each way, and that backward is the transpose of forward.

An operator A is linear, and maps tensors on the ranks to tensors on the ranks. Backward has to be its transpose:
⟨Ax, y⟩ = ⟨x, Aᵀy⟩ for all x and y, where an inner product adds up parts over ranks, and counts once what every rank has
in full. Whole numbers make both sides exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.tensor_parallel.common import MEGATRON
from minitrain.tensor_parallel import mappings as small
from minitrain.tensor_parallel.full import mappings


def demo(world: World) -> list[Claim]:
    """Applies the four operators; the table shows that what one sends forward, its conjugate sends backward."""
    rows, tokens, width = Rows(MEGATRON), 6, 4
    whole, part = (tokens, width * world.size), (tokens, width)
    # Each operator with the shape of what is in parts, or a partial sum; the other side is on all ranks in full.
    for case, operator, own in (
        ("f of the small form", small.f, whole),
        ("g of the small form", small.g, whole),
        ("f", mappings.f, whole),
        ("g", mappings.g, whole),
        ("split", mappings.split_to_parallel, part),
        ("gather", mappings.gather_from_parallel, part),
    ):
        enters = case.startswith(("f", "split"))  # they take what all ranks have in full
        full, mine = draw(world, whole, 0), draw(world, own, 1 + world.rank)
        x, y = (full, mine) if enters else (mine, full)
        x.requires_grad_()
        with Ledger() as forward:
            image = operator(x)
        with Ledger() as backward:
            image.backward(y)
        busy, idle = (backward, forward) if enters else (forward, backward)
        what = "payload: f and split backward, g and gather forward"
        verb = "all_gather" if case in ("split", "gather") else "all_reduce"
        rows.add(what, "S", 4 * full.numel(), busy.payload(verb), case=case)
        what = "communications the other way: f and split forward, g and gather backward"
        rows.add(what, "0", 0, len(idle.entries), "1", case=case)
        assert x.grad is not None
        gap = inner(image, y, in_parts=enters) - inner(x, x.grad, in_parts=not enters)
        what = "all operators of both forms: ⟨Ax, y⟩ − ⟨x, Aᵀy⟩"
        rows.add(what, "0", 0, gap, "1", "derived", case=case, how="compared")
    return rows.claims()


def inner(one: Tensor, other: Tensor, in_parts: bool) -> float:
    mine = (one.detach() * other).sum().item()
    return sum(gather_objects(mine)) if in_parts else mine


def draw(world: World, shape: tuple[int, int], seed: int) -> Tensor:
    """Whole numbers; the same seed gives all ranks the same."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, shape, generator=generator).to(world.device, torch.float32)
