"""What the demo of `mappings` shows: what each operator sends each way, and that backward is the transpose of forward.

An operator A is linear, and maps tensors on the ranks to tensors on the ranks. Backward has to be its transpose:
⟨Ax, y⟩ = ⟨x, Aᵀy⟩ for all x and y, where an inner product adds up parts over ranks, and counts once what every rank has
in full. Whole numbers make both sides exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, World
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.costs.communication import ring_all_gather, ring_all_reduce
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.tensor_parallel.common import MEGATRON, RING
from minitrain.tensor_parallel import mappings as small
from minitrain.tensor_parallel.full import mappings


class BothWays(NamedTuple):
    """An operator forward and backward: x, its image and y, which has gone backward."""

    x: Tensor
    image: Tensor
    y: Tensor
    forward: Ledger
    backward: Ledger

    def difference(self, into_parts: bool) -> float:
        """⟨Ax, y⟩ − ⟨x, Aᵀy⟩: x and Aᵀy lie alike, and so do Ax and y: one pair whole on all ranks, the other not."""
        assert self.x.grad is not None
        return _inner(self.image, self.y, into_parts) - _inner(self.x, self.x.grad, not into_parts)


def _both_ways(operator: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> BothWays:
    x.requires_grad_()
    with Ledger() as forward:
        image = operator(x)
    with Ledger() as backward:
        image.backward(y)
    return BothWays(x, image, y, forward, backward)


def small_form(world: World, tokens: int, width: int) -> dict[str, BothWays]:
    """f and g of the small form, forward and backward."""
    shape = (tokens, width * world.size)
    f = _both_ways(small.f, _whole(world, shape), _own(world, shape))
    return {"small form, f": f, "small form, g": _both_ways(small.g, _own(world, shape), _whole(world, shape))}


def full_form(world: World, tokens: int, width: int) -> dict[str, BothWays]:
    """All four operators through the ring, forward and backward."""
    whole, part = (tokens, width * world.size), (tokens, width)
    operators = {
        "f": (mappings.f, _whole(world, whole), _own(world, whole)),
        "g": (mappings.g, _own(world, whole), _whole(world, whole)),
        "split": (mappings.split_to_parallel, _whole(world, whole), _own(world, part)),
        "gather": (mappings.gather_from_parallel, _own(world, part), _whole(world, whole)),
    }
    by = Comm(collectives=ring)
    return {name: _both_ways(partial(operator, comm=by), x, y) for name, (operator, x, y) in operators.items()}


def claims(world: World, tokens: int, width: int) -> list[Claim]:
    """What each operator sends, each way, and that backward is the transpose of forward."""
    of_small, of_full = small_form(world, tokens, width), full_form(world, tokens, width)
    elements = tokens * width * world.size
    # f and split send in backward, g and gather in forward; f and g an all-reduce, the others an all-gather.
    payloads, sent, silent, gaps = {}, {}, {}, {}
    for name, run in (of_small | of_full).items():
        backward = name.endswith(("f", "split"))
        busy, idle = (run.backward, run.forward) if backward else (run.forward, run.backward)
        silent[name] = Claim("", "0", 0, len(idle.entries), "1", MEGATRON)
        # f and split take an unsharded tensor to shards or partial sums, g and gather the other way round.
        gap = run.difference(into_parts=backward)
        gaps[name] = Claim("", "0", 0, gap, "1", "derived", "compared")
        if name in of_small:
            payloads[name] = Claim("", "S", 4 * elements, busy.payload("all_reduce"), "B", MEGATRON)
            continue
        size = (elements, 4, world.size, world.rank)
        reduces = name in ("f", "g")
        traffic = ring_all_reduce(*size) if reduces else ring_all_gather(*size)
        formula = "2S − cᵣ − cᵣ₊₁ ≈ 2(t−1)/t · S" if reduces else "S − cᵣ₊₁ ≈ (t−1)/t · S"
        sent[name] = Claim("", formula, traffic.bytes, busy.sent, "B", RING)
    of_sums = {name: claim for name, claim in sent.items() if name in ("f", "g")}
    of_parts = {name: claim for name, claim in sent.items() if name not in of_sums}
    return [
        fold("small form: payload of all-reduces, f backward and g forward", payloads, key=True),
        fold("bytes sent by this rank, f backward and g forward", of_sums, key=True),
        fold("bytes sent by this rank, split backward and gather forward", of_parts, key=True),
        fold("communications the other way: f and split forward, g and gather backward", silent, key=True),
        fold("all operators of both forms: ⟨Ax, y⟩ − ⟨x, Aᵀy⟩", gaps, key=True),
    ]


def _inner(one: Tensor, other: Tensor, in_parts: bool) -> float:
    mine = (one.detach() * other).sum().item()
    return sum(gather_objects(mine)) if in_parts else mine


def _whole(world: World, shape: tuple[int, int]) -> Tensor:
    return _draw(world, shape, 0)


def _own(world: World, shape: tuple[int, int]) -> Tensor:
    return _draw(world, shape, 1 + world.rank)


def _draw(world: World, shape: tuple[int, int], seed: int) -> Tensor:
    """Whole numbers; the same seed gives all ranks the same."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, shape, generator=generator).to(world.device, torch.float32)


def demo(world: World, tokens: int = 6, width: int = 4) -> list[Claim]:
    """Applies the four operators; the table shows that what one sends forward, its conjugate sends backward.

    Args:
        tokens: Rows of the activations.
        width: Columns of each rank's part; the whole has so many times the number of ranks.
    """
    return claims(world, tokens, width)
