"""The partition is exact: every element in one place, equal shards, and nothing lost between tensors and line."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from minitrain.zero import Partition
from minitrain.zero.full.units import default_units, unit_of_parameters

shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=5).map(
    lambda found: {f"p{number}": shape for number, shape in enumerate(found)}
)
ranks = st.integers(1, 6)


@given(shapes, ranks)
def test_every_element_is_in_one_place(given_shapes, n):
    partition = Partition(given_shapes, n)
    sizes = [torch.Size(shape).numel() for shape in given_shapes.values()]
    pieces = torch.arange(1, sum(sizes) + 1).split(sizes) if sizes else ()
    tensors = {name: piece.view(shape) for (name, shape), piece in zip(given_shapes.items(), pieces, strict=True)}
    flat = partition.flatten(tensors)
    assert flat.tolist() == [*range(1, sum(sizes) + 1), *[0] * partition.padding]
    assert partition.padding == -sum(sizes) % n
    for name, view in partition.views(flat).items():
        assert torch.equal(view, tensors[name])
        assert view.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    found = []
    for rank, chunk in enumerate(flat.tensor_split(n)):
        shard = partition.shard(flat, rank)
        assert torch.equal(shard, chunk) and shard.data_ptr() == chunk.data_ptr()
        assert len(shard) == partition.shard_elements
        for name, start, stop, offset in partition.segments(rank):
            piece = tensors[name].flatten()[start:stop]
            assert len(piece) > 0 and torch.equal(shard[offset : offset + stop - start], piece)
            found += piece.tolist()
    assert found == list(range(1, sum(sizes) + 1))


class Nested(nn.Module):
    """A list of blocks and a Sequential; a weight tied inside a block, one tied across, and a block used twice."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(3))
        self.blocks[0][2].weight = self.blocks[0][0].weight
        self.blocks[2] = self.blocks[1]
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.tail = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.tail[0].weight = self.blocks[1][0].weight


def test_units_are_the_outermost_lists():
    module = Nested()
    assert default_units(module) == [module.blocks[0], module.blocks[1], module.tail[0]]
    assert default_units(module.tail) == [module.tail[0]]
    assert default_units(nn.Linear(2, 2)) == []


def test_a_parameter_belongs_to_the_innermost_unit_that_holds_all_its_uses():
    module = Nested()
    found = unit_of_parameters(module, default_units(module))
    assert found == {
        "embedding.weight": -1,
        "blocks.0.0.weight": 0,
        "blocks.0.0.bias": 0,
        "blocks.0.2.bias": 0,
        "blocks.1.0.weight": -1,  # the tail uses it, too
        "blocks.1.0.bias": 1,
        "blocks.1.2.weight": 1,
        "blocks.1.2.bias": 1,
        "tail.0.bias": 2,
    }
    nested = unit_of_parameters(module, [module.blocks[0], module.blocks[0][2]])
    assert (nested["blocks.0.0.weight"], nested["blocks.0.0.bias"], nested["blocks.0.2.bias"]) == (0, 0, 1)
    with pytest.raises(ValueError, match=r"units\[1\], a Linear, is no part of `module`"):
        unit_of_parameters(module, [module.head, nn.Linear(1, 1)])
