"""What the demo of `mappings` shows: what each operator sends each way, and that backward is the transpose of forward.

An operator A takes what lies on the ranks to something else that lies on them, and is linear. Backward has to be its
transpose: ⟨Ax, y⟩ = ⟨x, Aᵀy⟩ for all x and y, where an inner product adds over ranks what is there in parts, and counts
once what is there whole. Whole numbers make both sides exact.
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
from minitrain.costs.communication import NOTHING, ring_all_gather, ring_all_reduce
from minitrain.lessons import Claim
from minitrain.lessons.claims import as_key
from minitrain.lessons.tensor_parallel.common import MEGATRON, RING
from minitrain.tensor_parallel import mappings as small
from minitrain.tensor_parallel.full import mappings


def small_form(world: World, tokens: int, width: int) -> list[Claim]:
    """What f and g of the small form hand to all-reduces each way, and that backward is the transpose of forward."""
    shape = (tokens, width * world.size)
    size = 4 * tokens * width * world.size
    f = _both_ways(small.f, _whole(world, shape), _own(world, shape))
    g = _both_ways(small.g, _own(world, shape), _whole(world, shape))
    made = [
        Claim(f"small form: {what}: payload of all-reduces", formula, predicted, ledger.payload("all_reduce"), "B")
        for what, formula, predicted, ledger in (
            ("f, backward", "S", size, f.backward),
            ("g, forward", "S", size, g.forward),
        )
    ]
    silent = len(f.forward.entries) + len(g.backward.entries)
    # f splits an unsharded tensor into shards, g puts the shards together.
    gaps = [f.difference(into_parts=True), g.difference(into_parts=False)]
    return [
        *as_key(*made),
        Claim("small form: f forward and g backward: communications", "0", 0, silent, "1", MEGATRON, key=True),
        Claim(
            "small form: f and g: ⟨Ax, y⟩ − ⟨x, Aᵀy⟩, sum of absolute values",
            "0",
            0,
            sum(map(abs, gaps)),
            "1",
            MEGATRON,
            "compared",
            key=True,
        ),
    ]


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


def claims(world: World, tokens: int, width: int) -> list[Claim]:
    """Bytes of each operator forward and backward through the ring, and how far it is from having its transpose."""
    whole = (tokens, width * world.size)
    size = (tokens * width * world.size, 4, world.size, world.rank)
    reduced, gathered = ring_all_reduce(*size), ring_all_gather(*size)
    all_reduce, all_gather = "2S − cᵣ − cᵣ₊₁ ≈ 2(t−1)/t · S", "S − cᵣ₊₁ ≈ (t−1)/t · S"
    made = []
    for name, operator, x, y, sent in (
        ("f, copy", mappings.f, _whole(world, whole), _own(world, whole), (NOTHING, reduced)),
        ("g, reduce", mappings.g, _own(world, whole), _whole(world, whole), (reduced, NOTHING)),
        ("split", mappings.split_to_parallel, _whole(world, whole), _own(world, (tokens, width)), (NOTHING, gathered)),
        (
            "gather",
            mappings.gather_from_parallel,
            _own(world, (tokens, width)),
            _whole(world, whole),
            (gathered, NOTHING),
        ),
    ):
        run = _both_ways(partial(operator, comm=Comm(collectives=ring)), x, y)
        for way, ledger, traffic in zip(("forward", "backward"), (run.forward, run.backward), sent, strict=True):
            formula = "0" if traffic is NOTHING else all_reduce if traffic is reduced else all_gather
            key = (name, way) in (("f, copy", "backward"), ("g, reduce", "forward"))
            made.append(Claim(f"{name}: bytes sent {way}", formula, traffic.bytes, ledger.sent, "B", RING, key=key))
        gap = run.difference(into_parts=name in ("f, copy", "split"))
        made.append(Claim(f"{name}: ⟨Ax, y⟩ − ⟨x, Aᵀy⟩", "0", 0, gap, "1", MEGATRON, "compared"))
    return made


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
    return [*small_form(world, tokens, width), *claims(world, tokens, width)]
