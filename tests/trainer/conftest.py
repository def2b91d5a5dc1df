"""Runs of many steps alike: that tensors have the right shapes is checked in tests/composition, for a few steps."""

import pytest
from torch import Tensor

from minitrain.lessons.rows import most


@pytest.fixture(autouse=True)
def unchecked(without_shapes: None) -> None:
    pass


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest distance between two states."""
    return most((one[name] - other[name]).abs().max().item() for name in one)
