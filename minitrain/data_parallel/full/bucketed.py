"""The buckets of `DataParallel`: gradients of one dtype and device side by side, and flags of which there are any.

**Sent.** One element per parameter after the gradients: a parameter that some ranks did not use counts as zeros there,
and one that no rank used is left alone.
**Waits for the GPU** only where this rank did not use a parameter: it then reads whether another rank did.
**Cost.** `minitrain.costs.data_parallel.buckets`: at most ⌈gradient bytes / bucket size⌉ messages for each dtype.
Also called gradient bucketing (DDP), tensor fusion (Horovod), grad buffers (Megatron-LM).
"""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from minitrain.data_parallel.full.replica import reduced_in


class Bucket:
    """Parameters whose gradients travel together, and the flat tensor in which they do.

    Args:
        parameters: By name, in the order in which they lie; all of one dtype and device.
        reduce_dtype: As of `Replica`.

    Attributes:
        flat: The gradients side by side, and after them a flag for each.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], reduce_dtype: torch.dtype | None = None):
        self.parameters = parameters
        first = next(iter(parameters.values()))
        self._packed = first.dtype
        sizes = [*(parameter.numel() for parameter in parameters.values()), len(parameters)]
        self.flat = torch.zeros(sum(sizes), dtype=reduced_in(first, reduce_dtype), device=first.device)
        *parts, self._flags = self.flat.split(sizes)
        pairs = zip(parameters.items(), parts, strict=True)
        self._views = {name: part.view(parameter.shape) for (name, parameter), part in pairs}
        self._absent: set[str] = set()  # parameters of which this rank has no gradient

    def put(self, name: str, gradient: Tensor | None, scale: float) -> None:
        """Copy this rank's gradient of a parameter, times `scale`, to its place.

        Raises:
            RuntimeError: The parameter has another dtype or device than when it was packed.
        """
        parameter = self.parameters[name]
        if parameter.dtype != self._packed or parameter.device != self.flat.device:
            raise RuntimeError(
                f"{name} was {self._packed} on {self.flat.device} when the module was wrapped and now is "
                f"{parameter.dtype} on {parameter.device}; wrap the module after changing it"
            )
        if gradient is None:
            self._views[name].zero_()  # this rank adds nothing
            self._absent.add(name)
        else:
            # Where the bucket has fewer bits than the gradient, the product is rounded once.
            torch.mul(gradient, scale, out=self._views[name])

    def seal(self) -> Shaped[Tensor, " elements"]:
        """Set the flags; returns what is to be sent."""
        self._flags.fill_(1)
        if self._absent:
            self._flags.copy_(torch.tensor([name not in self._absent for name in self.parameters]))
        return self.flat

    def hand_back(self) -> None:
        """Copy what is now the mean to the gradients of all parameters that some rank used."""
        # A sum of flags above 0 means that some rank has a gradient. Reading it waits for a GPU, so only if needed.
        used = (self._flags.real > 0).tolist() if self._absent else [True] * len(self._views)
        for parameter, view, some in zip(self.parameters.values(), self._views.values(), used, strict=True):
            if not some:
                continue  # no rank used it: a gradient of zeros would move it where an optimizer has momentum
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter, dtype=parameter.grad_dtype)
            parameter.grad.copy_(view)
        self._absent.clear()


def pack(
    parameters: dict[str, nn.Parameter], bucket_megabytes: float, reduce_dtype: torch.dtype | None = None
) -> list[Bucket]:
    """Pack parameters into buckets, the last parameter first; a bucket is closed when it has reached the size.

    The last parameters come first because backward reaches them first, which matters once buckets leave during it. A
    bucket may be larger than asked for by less than its last parameter, and a parameter is never cut.
    """
    buckets: list[dict[str, nn.Parameter]] = []
    filling: dict[tuple[torch.dtype, torch.device], dict[str, nn.Parameter]] = {}
    for name, parameter in reversed(parameters.items()):
        # A flat tensor has one dtype and is on one device.
        kind = (parameter.dtype, parameter.device)
        bucket = filling.setdefault(kind, {})
        if not bucket:
            buckets.append(bucket)
        bucket[name] = parameter
        size = sum(member.numel() for member in bucket.values()) * reduced_in(parameter, reduce_dtype).itemsize
        if size >= bucket_megabytes * 2**20:
            del filling[kind]
    return [Bucket(bucket, reduce_dtype) for bucket in buckets]
