"""The full form of `minitrain.tensor_parallel.mappings`, with split and gather, any collectives, and checks.

The conjugate operators: how activations go from what all ranks hold to what each holds a part of, and back.

**Idea.** Where tensor-parallel work begins, all ranks hold the same x, and each uses it for its own part of the model.
Forward has nothing to send, but x was used n times, so its gradient is a sum of n parts. Where the work ends, each rank
holds one summand of y. Forward adds them, and backward has nothing to send, since every summand has y's gradient. Each
operator is the other with forward and backward exchanged.

**Source.** Shoeybi et al. 2019, "Megatron-LM", §3, figure 3, where the two are f and g.

**What each rank holds.** The activations only; n ranks, x of S bytes.

**What is sent, when and why.**

| operator | paper | forward | backward |
|---|---|---|---|
| `copy_to_parallel` | f | x as it is | all-reduce: the gradient has n summands |
| `reduce_from_parallel` | g | all-reduce: y has n summands | the gradient as it is |
| `split_to_parallel` | – | this rank's part of the last dim | all-gather: each rank has a part of the gradient |
| `gather_from_parallel` | – | all-gather of the parts | this rank's part of the gradient |

The last two rows take for granted that what follows (or goes before) is the same on all ranks: the gradient of a
gathered tensor is then whole on every rank, and each takes its part without adding.

**Cost.** An all-reduce of S bytes, or an all-gather, which is half of one:
`minitrain.costs.communication.ring_all_reduce` and `ring_all_gather`.

**Also called.** `copy_to_tensor_model_parallel_region` and so on in Megatron-LM; in DTensor the redistributions from
`Replicate()`, from `Partial()` and from `Shard(-1)`; an identity and its transpose in Mesh-TensorFlow and GSPMD.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from minitrain.collectives.full import native
from minitrain.comm.messages import Handle
from minitrain.tensor_parallel.full.checks import check_same, check_split, place


@runtime_checkable
class Collectives(Protocol):
    """The verbs used here and in chapter 09. `minitrain.collectives.full.native` and `.ring` have them, as modules."""

    def all_reduce(self, tensor: Tensor, group: dist.ProcessGroup | None, *, check: bool | None) -> Handle: ...

    def reduce_scatter(self, tensor: Tensor, group: dist.ProcessGroup | None, *, check: bool | None) -> Handle: ...

    def all_gather(self, tensor: Tensor, group: dist.ProcessGroup | None, *, check: bool | None) -> Handle: ...


def copy_to_parallel(
    x: Float[Tensor, "*shape"],
    group: dist.ProcessGroup | None = None,
    collectives: Collectives = native,
    *,
    check: bool | None = None,
) -> Float[Tensor, "*shape"]:
    """f: x forward, all-reduce backward. Shoeybi et al. 2019, §3.

    Args:
        x: The same on all ranks.
        group: The tensor-parallel ranks; None means everyone.
        collectives: Who carries the gradient.
        check: Compare x across ranks first. None: in demos and notebooks only.

    Raises:
        ValueError: This rank is not in the group; with checking also if x differs between ranks.
    """
    place(group)
    check_same("copy_to_parallel", "x", x, group, check)
    return _Copy.apply(x, group, collectives)


def reduce_from_parallel(
    x: Float[Tensor, "*shape"],
    group: dist.ProcessGroup | None = None,
    collectives: Collectives = native,
    *,
    check: bool | None = None,
) -> Float[Tensor, "*shape"]:
    """g: all-reduce forward, the gradient as it is backward. Shoeybi et al. 2019, §3.

    Args:
        x: This rank's summand; the same shape and dtype on all ranks.
        group: The tensor-parallel ranks; None means everyone.
        collectives: Who carries x.
        check: Compare shape and dtype across ranks first. None: in demos and notebooks only.

    Raises:
        ValueError: This rank is not in the group; with checking also if shape or dtype differ between ranks.
    """
    place(group)
    return _Reduce.apply(x, group, collectives, check)


def split_to_parallel(
    x: Float[Tensor, "*batch width"],
    group: dist.ProcessGroup | None = None,
    collectives: Collectives = native,
    *,
    check: bool | None = None,
) -> Float[Tensor, "*batch shard"]:
    """This rank's part of the last dim forward, all-gather backward.

    Args:
        x: The same on all ranks.
        group: The tensor-parallel ranks; None means everyone.
        collectives: Who carries the gradient.
        check: Compare x across ranks first. None: in demos and notebooks only.

    Raises:
        ValueError: The last dim does not divide by the ranks, or this rank is not in the group; with checking also if x
            differs between ranks.
    """
    check_split("width", x.shape[-1], place(group)[1])
    check_same("split_to_parallel", "x", x, group, check)
    return _Split.apply(x, group, collectives)


def gather_from_parallel(
    x: Float[Tensor, "*batch shard"],
    group: dist.ProcessGroup | None = None,
    collectives: Collectives = native,
    *,
    check: bool | None = None,
) -> Float[Tensor, "*batch width"]:
    """The ranks' parts side by side in the last dim forward, this rank's part of the gradient backward.

    Args:
        x: This rank's part; the same shape and dtype on all ranks.
        group: The tensor-parallel ranks; None means everyone.
        collectives: Who carries x.
        check: Compare shape and dtype across ranks first. None: in demos and notebooks only.

    Raises:
        ValueError: This rank is not in the group; with checking also if shape or dtype differ between ranks.
    """
    place(group)
    return _Gather.apply(x, group, collectives, check)


f = copy_to_parallel
"""The paper's name."""

g = reduce_from_parallel
"""The paper's name."""


# Backward of each is forward of its conjugate, so they can be differentiated any number of times.


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None, collectives: Collectives) -> Tensor:
        ctx.arguments = group, collectives
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Reduce.apply(gradients[0], *ctx.arguments, False), None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: dist.ProcessGroup | None, collectives: Collectives, check: bool | None
    ) -> Tensor:
        ctx.arguments = group, collectives
        total = x.clone(memory_format=torch.contiguous_format)  # autograd may hand x to others too
        # Every rank puts its summand in and gets the sum out.
        collectives.all_reduce(total, group, check=check).wait()
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Copy.apply(gradients[0], *ctx.arguments), None, None, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None, collectives: Collectives) -> Tensor:
        ctx.arguments = group, collectives
        part = x.tensor_split(dist.get_world_size(group), dim=-1)[dist.get_rank(group)]
        return part.clone(memory_format=torch.contiguous_format)  # a view would keep the rest of x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Gather.apply(gradients[0], *ctx.arguments, False), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: dist.ProcessGroup | None, collectives: Collectives, check: bool | None
    ) -> Tensor:
        ctx.arguments = group, collectives
        parts = x.new_empty(dist.get_world_size(group), *x.shape)  # [rank, *batch, shard]
        parts[dist.get_rank(group)] = x
        # Every rank brings one part and gets all of them, one behind the other.
        collectives.all_gather(parts, group, check=check).wait()
        return parts.movedim(0, -2).flatten(-2)  # [*batch, rank · shard]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Split.apply(gradients[0], *ctx.arguments), None, None, None
