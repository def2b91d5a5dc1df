"""The arithmetic of ZeRO: tensors side by side in one flat line, cut into equal shards, one for each rank.

**Idea.** Whole tensors cannot be distributed evenly, since one may be larger than all others together. Elements can. So
the line is padded with zeros until the ranks divide it, and rank r takes the r-th part. A shard may begin and end in
the middle of a tensor; an optimizer that treats each element by itself does not mind.

**Source.** Rajbhandari et al. 2020, "ZeRO", §5.1; Zhao et al. 2023, "PyTorch FSDP", §3.2.1.
**Cost.** Fewer than n elements of padding per line, on the last ranks: `minitrain.costs.zero.padding`.
Also called flat parameter (`FlatParameter` in FSDP1), flat partition (DeepSpeed), param and grad buffer (Megatron-LM).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor


class Segment(NamedTuple):
    """The piece of one tensor that lies in one rank's shard."""

    name: str
    start: int  # where the piece begins in the tensor's flat elements
    stop: int  # where it ends there
    offset: int  # where it begins in the shard


class Piece(NamedTuple):
    """What one rank's shard has of one tensor, for optimizers that need to know it."""

    name: str
    shape: torch.Size  # of the whole tensor
    place: int  # where the tensor begins in the line
    start: int  # where the piece begins in the tensor's flat elements
    own: slice  # where the piece lies in the shard; empty where the shard has nothing of the tensor


class Partition:
    """Where each tensor lies in the line, and which part of the line each rank has.

    Args:
        shapes: Shape of each tensor by name, in the order in which they lie.
        ranks: Number of shards. It may be larger than the number of elements: the last shards are then padding only.

    Attributes:
        offsets: Where each tensor begins in the line, by name.
        elements: Elements of all tensors.
        padding: Elements added after them, fewer than `ranks`.
        shard_elements: Elements of each shard; times `ranks` it is `elements` + `padding`.

    Raises:
        ValueError: `ranks` is less than 1.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], ranks: int):
        if ranks < 1:
            raise ValueError(f"ranks={ranks} must be at least 1")
        self.shapes = {name: torch.Size(shape) for name, shape in shapes.items()}
        self.ranks = ranks
        self.offsets: dict[str, int] = {}
        self.elements = 0
        for name, shape in self.shapes.items():
            self.offsets[name] = self.elements
            self.elements += math.prod(shape)
        # Rounded up: torch's reduce-scatter and all-gather want equal shards, so the last ranks get padding instead.
        self.shard_elements = -(-self.elements // ranks)
        self.padding = ranks * self.shard_elements - self.elements

    def flatten(self, tensors: Mapping[str, Tensor]) -> Shaped[Tensor, " padded"]:
        """A new line that holds a copy of the tensors, followed by zeros; the inverse of `views`.

        Raises:
            ValueError: Names or shapes are not those of the partition.
        """
        # Their order counts, too: in another order the same offsets would cut other tensors.
        if list(tensors) != list(self.shapes):
            raise ValueError(f"tensors: names {list(tensors)} are not those of the partition, {list(self.shapes)}")
        for name, tensor in tensors.items():
            if tensor.shape != self.shapes[name]:
                raise ValueError(f"{name}: shape {tuple(tensor.shape)} is not {tuple(self.shapes[name])}")
        first = next(iter(tensors.values()), torch.empty(0))
        # Zeros, not undefined memory: padding is summed and stepped like all else, and zeros stay zeros.
        flat = first.new_zeros(self.elements + self.padding)
        for name, view in self.views(flat).items():
            view.copy_(tensors[name])
        return flat

    def views(self, flat: Shaped[Tensor, " padded"]) -> dict[str, Tensor]:
        """Each tensor as a view of its place in the line, by name."""
        # Views, so that an all-gather into the line is at once the new value of the tensors.
        return {
            name: flat[offset : offset + math.prod(shape)].view(shape)
            for (name, shape), offset in zip(self.shapes.items(), self.offsets.values(), strict=True)
        }

    def shard(self, flat: Shaped[Tensor, " padded"], rank: int) -> Shaped[Tensor, " shard"]:
        """The part of the line that belongs to `rank`, as a view."""
        self._check(rank)
        return flat[rank * self.shard_elements : (rank + 1) * self.shard_elements]

    def segments(self, rank: int) -> list[Segment]:
        """The contents of rank's shard: a piece of each tensor that reaches into it, in order. Padding is left out."""
        self._check(rank)
        begin = rank * self.shard_elements
        end = begin + self.shard_elements
        found = []
        for (name, shape), offset in zip(self.shapes.items(), self.offsets.values(), strict=True):
            first, last = max(begin, offset), min(end, offset + math.prod(shape))
            if first < last:
                found.append(Segment(name, first - offset, last - offset, first - begin))
        return found

    def pieces(self, rank: int) -> list[Piece]:
        """What rank's shard has of each tensor, in order; every tensor is listed."""
        own = {segment.name: segment for segment in self.segments(rank)}
        found = []
        for name, shape in self.shapes.items():
            # Tensors without a piece here, too: ranks that send something for each must send equally often.
            _, start, stop, offset = own.get(name, Segment(name, 0, 0, 0))
            found.append(Piece(name, shape, self.offsets[name], start, slice(offset, offset + stop - start)))
        return found

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.ranks:
            raise ValueError(f"rank={rank} has no shard in a partition of {self.ranks}; use 0 to {self.ranks - 1}")
