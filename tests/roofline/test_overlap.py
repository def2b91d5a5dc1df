"""What is waited for when; the lesson has the values."""

from __future__ import annotations

import torch

from minitrain.comm.messages import Handle
from minitrain.roofline import overlap


class Noted:
    """A communication that notes when it begins and when it is waited for."""

    def __init__(self, events):
        self.events, self.count = events, 0

    def __call__(self, tensor):
        self.count += 1
        number = self.count
        self.events.append(f"start {number}")
        return Handle((), tensor, lambda: self.events.append(f"wait {number}"))


class Watched(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes each product."""

    def __init__(self, events):
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == "mm":
            self.events.append("product")
        return func(*args, **(kwargs or {}))


def events_of(call):
    events = []
    with Watched(events):
        call(Noted(events))
    return " ".join(events)


def ones(*shape):
    return torch.ones(*shape)


def test_gradients_are_waited_for_after_the_last_product():
    inputs, weights = [ones(2, 3)] * 2, [ones(3, 3)] * 2
    said = {
        hide: events_of(lambda noted, hide=hide: overlap.backward(inputs, weights, ones(2, 3), noted, hide))
        for hide in (True, False)
    }
    assert said[True] == "product product start 1 product product start 2 wait 2 wait 1"
    assert said[False].startswith("product product start 1 wait 1 product product start 2 wait 2")


def test_the_next_weight_sets_off_before_the_product():
    said = {
        hide: events_of(lambda noted, hide=hide: overlap.gathered(ones(2, 3), [ones(3, 3)] * 3, noted, hide))
        for hide in (True, False)
    }
    assert said[True] == "start 1 wait 1 start 2 product wait 2 start 3 product wait 3 product"
    assert said[False] == "start 1 wait 1 product start 2 wait 2 product start 3 wait 3 product"
