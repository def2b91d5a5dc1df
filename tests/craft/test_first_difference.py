"""Logs that differ, and logs that end early."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.craft.first_difference import fingerprint, first_difference, lines


def test_the_first_line_that_differs():
    one = ["0 parameter w aa", "0 loss bb", "1 parameter w cc"]
    assert first_difference(one, one) is None
    assert first_difference(one, ["0 parameter w aa", "0 loss XX", "1 parameter w XX"]) == (0, "loss")
    assert first_difference(one[:2], one) == first_difference(one, one[:2]) == (1, "parameter w")


def test_fingerprints_know_shape_and_dtype():
    values = torch.zeros(4)
    others = values.view(2, 2), values.int(), values.bfloat16(), torch.zeros(8, dtype=torch.bfloat16), -values
    assert len({fingerprint(each) for each in (values, *others)}) == 6
    assert fingerprint(torch.arange(6).view(2, 3).T) == fingerprint(torch.tensor([[0, 3], [1, 4], [2, 5]]))
    assert fingerprint(torch.tensor(1.5)) != fingerprint(torch.tensor([1.5]))


def test_unused_parameters_have_no_gradient_in_the_log():
    model = nn.ModuleDict({"a": nn.Linear(2, 1, bias=False), "b": nn.Linear(2, 1)})
    loss = model["a"](torch.ones(2)).sum()
    loss.backward()
    names = [line.split()[1:-1] for line in lines(3, loss, model)]
    parameters = [["parameter", name] for name in ("a.weight", "b.weight", "b.bias")]
    assert names == [*parameters, ["loss"], ["gradient", "a.weight"]]
