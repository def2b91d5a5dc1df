"""The common part of `DataParallel` and `ExpertParallel`: a copy of the model on each rank that stays equal to others.

Each rank holds every parameter, gradient and optimizer state. Three things make the copies equal and keep them so. At
the start, rank 0 sends its parameters and buffers to all. In each step, every rank applies the same gradient, the mean
over ranks. And all ranks call the same collectives in the same order, for which they must bring the same parameters.

Buffers (BatchNorm's running statistics) are sent once, at the start; after that each rank updates its own. Torch's DDP
sends rank 0's before every forward (unless `forward_sync_buffers=False`): the ranks' buffers are then equal, but the
other ranks' statistics are discarded, and every step pays for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm.comm import AnyComm, Comm, as_comm
from minitrain.comm.control import differing, gather_objects
from minitrain.data_parallel.full.gradient_hooks import call_when_accumulated


class Replica(nn.Module, ABC):
    """One rank's copy of `module`, equal to that of every other rank.

    Call it like the module. A step is: backward for each micro-batch, all but the last under `no_sync()`; then
    `synchronize()`; then clipping, `optimizer.step()` and `zero_grad()`.

    Args:
        module: Any module, on the device where it will train. A parameter that several layers share is sent once, a
            frozen one (`requires_grad=False`) at the start only.
        comm: The ranks that share the batch, as of `minitrain.comm.comm.Comm`; None means everyone.
        bucket_megabytes: A bucket is full when it has reached this many MiB (2²⁰ bytes), as DDP's `bucket_cap_mb`.
        reduce_dtype: Gradients of floating parameters are added up over ranks in it, and travel in it. With more bits
            than a parameter has, as torch.float32 for one in bfloat16, its `.grad` has them too, so that micro-batches
            are added up in them; the optimizer then has to step copies, as `minitrain.precision.master_weights` does.
            With fewer bits, only messages are rounded, as by DDP's `bf16_compress_hook`. None: as parameters are.

    Attributes:
        module: The module itself; its state dict is that of a run on one device.
        trainable: The parameters that get a gradient, by name, each once.
        comm: The ranks that share the batch.
        ranks: The number of these.

    Raises:
        ValueError: On every rank alike, before anything is sent: this rank is not in the group; the ranks' modules or
            settings differ; an embedding asks for sparse gradients; `bucket_megabytes` is not positive;
            `reduce_dtype` is not floating.
    """

    def __init__(
        self,
        module: nn.Module,
        comm: AnyComm = None,
        bucket_megabytes: float = 25.0,
        reduce_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.comm = as_comm(comm).unchecked  # the modules are compared here, so nothing is compared afterwards
        # Before anything is sent, or rank 0's values would go into tensors of other shapes.
        agree_on_states(module, bucket_megabytes, self.comm.group, reduce_dtype)
        if not bucket_megabytes > 0:
            raise ValueError(f"bucket_megabytes={bucket_megabytes} must be positive; 25 is usual")
        if reduce_dtype is not None and not reduce_dtype.is_floating_point:
            raise ValueError(f"reduce_dtype={reduce_dtype} is not floating; use torch.bfloat16 or torch.float32")
        self.reduce_dtype = reduce_dtype
        self.module, self.ranks = module, self.comm.ranks
        self.trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        for parameter in self.trainable.values():
            wide = torch.promote_types(parameter.dtype, reduced_in(parameter, reduce_dtype))
            if wide != parameter.dtype:
                parameter.grad_dtype = wide  # autograd adds in it
        self._local = False  # under no_sync()
        self._own = False  # whether gradients are this rank's own, because a backward was not followed by synchronize()
        # The nodes are kept, since the hooks live only as long as they do.
        self._hooked = [call_when_accumulated(p, self._arrive, name) for name, p in self.trainable.items()]
        broadcast_all([*module.parameters(), *module.buffers()], self.comm)
        self._prepare(bucket_megabytes)

    def _prepare(self, bucket_megabytes: float) -> None:
        """Setup that a subclass does once."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward.

        Raises:
            RuntimeError: A backward outside `no_sync()` was not followed by `synchronize()`: without it each rank would
                take a step of its own.
        """
        if self._own and torch.is_grad_enabled():
            raise RuntimeError(
                "forward was called before synchronize(): the gradients are this rank's own; call synchronize() after "
                "the last backward of a step, and run backward of the micro-batches before it under no_sync()"
            )
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in this block only adds to this rank's own gradients; for all micro-batches but the last."""
        before, self._local = self._local, True
        try:
            yield
        finally:
            self._local = before

    @abstractmethod
    def synchronize(self) -> None:
        """Make every gradient its mean over all ranks; to be called after the last backward of a step.

        A parameter that this rank did not use counts as a gradient of zeros. One that no rank used keeps what it has,
        normally None. Every rank must call it.

        Raises:
            ValueError: A gradient is sparse.
            RuntimeError: A parameter was frozen when the module was wrapped and now has a gradient.
        """

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a wrapped model belongs to its ranks, so it is not copied or pickled; take model.module")

    def _gradient(self, name: str) -> Tensor | None:
        """This rank's own gradient of one parameter; None if it has none in this step."""
        gradient = self.trainable[name].grad
        if gradient is None:
            return None
        if gradient.layout != torch.strided:
            raise ValueError(
                f"the gradient of {name} is sparse ({gradient.layout}), which buckets cannot hold; "
                "make the embedding with sparse=False, or keep its table on a parameter server"
            )
        return gradient.detach()  # after backward(create_graph=True) autograd would record its use

    def _arrive(self, name: str, parameter: Tensor) -> None:
        """The hook: backward has added a gradient to a parameter's `.grad`."""
        # A step with gradients of its own would let this rank drift away from the others: `forward` refuses to go on.
        self._own |= not self._local

    def _begin_synchronize(self) -> None:
        """The first part: the gradients of all parameters that have one are about to become means."""
        self._own = False
        for name, parameter in self._frozen.items():
            if parameter.grad is not None:
                raise RuntimeError(
                    f"{name} was frozen when the module was wrapped and now has a gradient, which the other ranks "
                    "would not get; wrap the module again after changing requires_grad"
                )


def broadcast_all(tensors: Iterable[Tensor], comm: Comm, source: int = 0) -> None:
    """Give all ranks the source's values."""
    started = []
    for tensor in tensors:
        whole = tensor.detach().contiguous()  # the tensor itself, or a copy where it has gaps
        # The source's value goes to all, so that all begin equal.
        started.append((tensor, whole, comm.broadcast(whole, source)))
    for tensor, whole, handle in started:
        handle.wait()
        if not tensor.is_contiguous():
            tensor.detach().copy_(whole)


def reduced_in(parameter: Tensor, reduce_dtype: torch.dtype | None) -> torch.dtype:
    """The dtype in which a parameter's gradients travel and are added up over ranks."""
    return reduce_dtype if reduce_dtype is not None and parameter.is_floating_point() else parameter.dtype


def agree_on_states(
    module: nn.Module,
    bucket_megabytes: float,
    group: dist.ProcessGroup | None,
    reduce_dtype: torch.dtype | None = None,
) -> None:
    """Check that all ranks wrap modules of the same parameters and buffers, with the same settings.

    Otherwise ranks would add up gradients of different parameters, or wait for all-reduces that never come.

    Raises:
        ValueError: On every rank alike, naming the first thing that differs and on which ranks; or an embedding asks
            for sparse gradients.
    """
    mine = {"bucket_megabytes": str(bucket_megabytes), "reduce_dtype": str(reduce_dtype)}
    for name, parameter in module.named_parameters():
        frozen = "" if parameter.requires_grad else " frozen"
        mine[f"parameter {name}"] = f"{_describe(parameter)}{frozen}"
    for name, buffer in module.named_buffers():
        mine[f"buffer {name}"] = _describe(buffer)
    for name, part in module.named_modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse:
            mine[f"embedding {name}"] = "sparse"
    everyone = gather_objects(mine, group)
    # In an order that all ranks share, so that all of them name the same difference.
    for name in dict.fromkeys(name for theirs in everyone for name in theirs):
        found = [theirs.get(name, "missing") for theirs in everyone]
        if differ := differing(found):
            raise ValueError(f"{name} differs between ranks: {differ}; wrap the same module on all")
        if found[0] == "sparse":
            raise ValueError(
                f"{name} asks for sparse gradients, which buckets cannot hold; make it with sparse=False, "
                "or keep its table on a parameter server"
            )
    if any(list(theirs) != list(everyone[0]) for theirs in everyone):
        raise ValueError("the order of parameters differs between ranks; build the module in the same order on all")


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
