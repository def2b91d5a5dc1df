"""What must be the same when a function is computed again: random numbers, precision, and buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class RandomState:
    """The current state of torch's random numbers, on the CPU and on `devices`."""

    def __init__(self, devices: Iterable[torch.device]):
        self.cpu = torch.get_rng_state()
        self.others = {device: torch.get_device_module(device).get_rng_state(device) for device in devices}

    def restore(self) -> None:
        """Continue from here: the next numbers are those that followed this moment."""
        torch.set_rng_state(self.cpu)
        for device, state in self.others.items():
            torch.get_device_module(device).set_rng_state(state, device)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the numbers that followed this moment once more; after the block the caller's own continue."""
        # Backward must not move the random numbers of the training.
        before = RandomState(self.others)
        self.restore()
        try:
            yield
        finally:
            before.restore()


def autocast_settings(kinds: Iterable[str]) -> list[dict[str, Any]]:
    """Arguments of `torch.autocast` that bring back the precision of this moment, for each kind of device."""
    return [
        {
            "device_type": kind,
            "dtype": torch.get_autocast_dtype(kind),
            "enabled": torch.is_autocast_enabled(kind),
            # The cache may have a copy of a weight that was made under `no_grad`, as in the first call, and has no
            # graph back to the weight (pytorch issue 112583).
            "cache_enabled": False,
        }
        for kind in sorted(kinds)
    ]


@contextmanager
def buffers_put_back(module: nn.Module) -> Iterator[None]:
    """Give the buffers of `module` back the values that they have now, so that a second call does not count twice."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            # Through .data, which autograd does not watch: BatchNorm hands its buffers to a backward that ignores them.
            buffer.data.copy_(value)
