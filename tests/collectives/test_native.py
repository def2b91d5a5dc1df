"""native: asynchronous, thin, and without a warning about names."""

from __future__ import annotations

import warnings

import torch

from minitrain.collectives.full import native


def overlapped(world):
    """Several at once, waited for in another order than started."""
    tensors = [torch.full((10,), float(world.rank + k)) for k in range(4)]
    handles = [native.all_reduce(tensor) for tensor in tensors]
    for handle in reversed(handles):
        handle.wait()
    return [tensor.unique().tolist() for tensor in tensors]


def test_several_may_be_under_way(ranks):
    base = sum(range(3))
    assert ranks(3).run(overlapped) == [[[float(base + 3 * k)] for k in range(4)]] * 3


def warned(world):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for elements in (6, 7):
            native.reduce_scatter(torch.ones(elements)).wait()
            native.all_gather(torch.ones(elements)).wait()
    return [str(warning.message) for warning in caught]


def test_no_name_is_deprecated(ranks):
    assert ranks(2).run(warned) == [[], []]
