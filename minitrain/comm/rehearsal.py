"""A rehearsal: run on CPUs what would run on GPUs, and see what NCCL would make of it.

gloo carries the messages, so the program runs and its numbers are right. Code that asks for the backend is told "nccl",
and so takes the branches that it would take on GPUs. A dispatch mode writes down what each rank asks for, in the order
of its program, with the line of code. Then `minitrain.comm.nccl.replay` carries that out under NCCL's rules.

All tensors are in the CPU's memory here. `world.device` is "cpu:0", which to torch is the CPU as well. What is made on
it, or brought to it, counts as a tensor on the GPU, and so does all that is computed from it. What a program makes
without a device, or by `.cpu()`, counts as a tensor of the CPU.

Not rehearsed: code that asks for a device of type "cuda", threads that communicate by themselves, and NCCL's speed,
memory and rounding.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.comm import messages
from minitrain.comm.control import gather_objects
from minitrain.comm.ledger import NAMES, group_of
from minitrain.comm.nccl import ASIDE, Broken, Step, replay
from minitrain.comm.sites import site

GPU = torch.device("cpu", 0)
# Operations whose result the program needs before it can go on, so it waits for the GPU.
READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_consecutive")
# Operations that take tensors of the CPU and of the GPU together.
BRIDGES = ("copy_", "_to_copy", "set_", "index", "index_put_", "_index_put_impl_")
# torch's functions that make tensors; one that another operation makes inside is wherever that operation's are.
MAKERS = ("tensor", "as_tensor", "from_numpy", "frombuffer", "zeros", "ones", "empty", "full", "arange", "linspace")
MAKERS = (*MAKERS, "eye", "rand", "randn", "randint", "randperm", "normal")


class NotOnGPUs(RuntimeError):
    """A program runs with gloo, and would not with NCCL."""


class Rehearsal(TorchDispatchMode):
    """Writes down what this rank asks for, from `start()` to `stop()`; `check()` replays it.

    Attributes:
        steps: What this rank's program has asked for since the last check.
        reads: How often the program has waited for the GPU since then, by line.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begin()
        self._on_gpu: set[StorageWeakRef] = set()
        self._on_cpu: set[StorageWeakRef] = set()
        self._names: dict[Any, str] = {dist.group.WORLD: "everyone"}
        self._members: dict[str, tuple[int, ...]] = {"everyone": tuple(range(dist.get_world_size()))}
        self._gloo: set[Any] = set()
        self._only_here = False
        self._batch: int | None = None
        self._batches = 0
        self._undo: list[tuple[Any, str, Any]] = []

    @classmethod
    def start(cls) -> Rehearsal:
        """Start recording; from now on `backend()` answers "nccl"."""
        rehearsal = cls()
        messages.rehearsed = rehearsal._backend
        rehearsal._patch()
        rehearsal.__enter__()
        return rehearsal

    def stop(self) -> None:
        """Give torch back its functions."""
        self.__exit__(None, None, None)
        for owner, name, original in reversed(self._undo):
            setattr(owner, name, original)
        messages.rehearsed = None

    def begin(self) -> None:
        """Drop the record so far."""
        self.steps: list[Step] = []
        self.reads: Counter[str] = Counter()
        self._broken: dict[Broken, None] = {}
        self._works: dict[Any, int] = {}

    def check(self) -> list[Broken]:
        """The rules that all ranks' steps since the last check break; every rank calls it, and gets the same."""
        mine = (self.steps, self._members, list(self._broken))
        self.begin()
        everyone = gather_objects(mine)
        members = {name: ranks for _, known, _ in everyone for name, ranks in known.items()}
        own = {broken: None for _, _, ranks in everyone for broken in ranks}
        found: list[Broken] = []
        if dist.get_rank() == 0:
            found = [*own, *replay([steps for steps, _, _ in everyone], members)]
        return gather_objects(found)[0]

    def __str__(self) -> str:
        sent = sum(step.verb not in ASIDE for step in self.steps)
        lines = [f"{count} in {line}" for line, count in self.reads.most_common(8)]
        return (
            f"rehearsed for NCCL: {sent:,} communications of this rank; {self.reads.total():,} times its program "
            f"waited for the GPU{': ' if lines else ''}{'; '.join(lines)}"
        )

    def _backend(self, group: dist.ProcessGroup | None) -> str:
        return "gloo" if group in self._gloo else "nccl"

    # What is written down.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if func.namespace == "c10d":
            return self._communicate(func, name, args, kwargs)
        used = {StorageWeakRef(tensor.untyped_storage()): tensor for tensor in _tensors((args, kwargs))}
        on_gpu = any(storage in self._on_gpu for storage in used)
        if on_gpu and name in READS:
            self._read()
        device = kwargs.get("device")
        if on_gpu and name not in BRIDGES:
            strangers = [each for storage, each in used.items() if storage in self._on_cpu and each.dim()]
            if strangers and (device is None or device.index is None):
                shape = list(strangers[0].shape)
                self._break("memory", f"{name} is given a tensor of the CPU, of shape {shape}, beside one of the GPU")
        result = func(*args, **kwargs)
        if on_gpu or (device is not None and device.index == GPU.index):
            place = self._on_gpu
        elif any(storage in self._on_cpu for storage in used):
            place = self._on_cpu
        else:
            return result
        for tensor in _tensors(result):
            storage = StorageWeakRef(tensor.untyped_storage())
            if storage not in used:
                self._mark(storage, place)
        return result

    def _communicate(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        values = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        group = group_of(values)
        number = None
        if group is not None and group not in self._gloo:
            number = len(self.steps)
            self.steps.append(self._described(NAMES.get(name, name), name, values, group))
            if name == "barrier":
                self.steps += [Step("wait", of=(number,)), Step("host", site().line)]
        result = func(*args, **kwargs)
        if number is not None:
            last = result[-1] if isinstance(result, (tuple, list)) else result
            if isinstance(last, torch.ScriptObject):
                self._works[dist.Work.unbox(last)] = number
        return result

    def _described(self, verb: str, name: str, values: dict[str, Any], group: dist.ProcessGroup) -> Step:
        ranks = self._members[self._names[group]]
        tensors = list(
            _tensors([value for key, value in values.items() if "output" in key or "input" in key or "tensor" in key])
        )
        on_cpu = name != "barrier" and any(
            each.numel() and StorageWeakRef(each.untyped_storage()) in self._on_cpu for each in tensors
        )
        peer = values.get("dst", values.get("src"))
        given = list(_tensors(values.get("input_tensors", values.get("input_tensor", values.get("input", tensors)))))
        elements = sum(each.numel() for each in given)
        first = given[0] if given else tensors[0]
        same: tuple = ()
        if verb not in ("send", "receive", "all_to_all", "gather", "scatter"):
            same = (elements, values.get("root_rank"))
        return Step(
            verb,
            site().line,
            self._names[group],
            ranks[peer] if peer is not None and name != "recv_any_source_" else None,
            elements,
            str(first.dtype).removeprefix("torch."),
            self._batch,
            on_cpu,
            same=same,
        )

    def _read(self) -> None:
        """The program waits until the GPU has done what it was given."""
        if self._only_here:
            return
        line = site().line
        self.reads[line] += 1
        if self.steps and self.steps[-1].verb != "host":
            self.steps.append(Step("host", line))

    def _break(self, rule: str, text: str) -> None:
        self._broken[Broken(rule, (dist.get_rank(),), f"{text} ({site().line})")] = None

    def _mark(self, storage: StorageWeakRef, place: set[StorageWeakRef]) -> None:
        place.add(storage)
        if len(place) % 4096 == 0:
            place.difference_update([each for each in list(place) if each.expired()])  # list: threads may add to it

    def _is_on_gpu(self, tensor: Tensor) -> bool:
        return any(StorageWeakRef(each.untyped_storage()) in self._on_gpu for each in _tensors(tensor))

    # What the dispatcher does not see.

    def _patch(self) -> None:
        """Look at the functions of torch that make groups, end them, wait, and move tensors between memories."""
        self._replace(distributed_c10d, "_new_group_with_tag", self._new_group)
        for module in (distributed_c10d, dist):
            self._replace(module, "destroy_process_group", self._destroy)
            self._replace(module, "batch_isend_irecv", self._batched)
        self._replace(distributed_c10d, "_get_object_coll_device", lambda original: lambda group=None: str(GPU))
        self._replace(dist.Work, "wait", self._wait)
        _device_constructors()  # torch remembers them from now on as they were: `with torch.device(...)` asks
        for name in MAKERS:
            self._replace(torch, name, self._maker)
        self._replace(torch.nn.functional, "one_hot", self._checks_values)
        self._replace(Tensor, "new_tensor", self._new_tensor)
        self._replace(Tensor, "cpu", self._to_cpu)
        self._replace(Tensor, "to", self._to)
        for name in ("tolist", "__repr__", "__format__"):
            self._replace(Tensor, name, self._reader)
        for name in ("numpy", "__array__"):
            self._replace(Tensor, name, self._array)
        inside = Tensor.device

        def device(tensor: Tensor) -> torch.device:
            return GPU if self._is_on_gpu(tensor) else inside.__get__(tensor)

        self._undo.append((Tensor, "device", inside))
        Tensor.device = property(device)  # type: ignore[assignment]

    def _replace(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._undo.append((owner, name, original))
        setattr(owner, name, wraps(original)(around(original)))

    def _new_group(self, original: Any) -> Any:
        def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
            members = tuple(range(dist.get_world_size()) if ranks is None else sorted(ranks))
            label, line = ",".join(map(str, members)), site().line
            group = original(ranks, timeout, backend, *args, **kwargs)
            inside = dist.get_rank() in members
            if inside:
                count = sum(self._members[name] == members for name in self._names.values())
                self._names[group] = f"{label}#{count}"
                self._members[f"{label}#{count}"] = members
            if inside and str(backend) == "gloo":
                self._gloo.add(group)
            else:
                # Whatever the backend: ranks outside take part in a split of everyone's communicator.
                self.steps.append(Step("make", line, label))
            return group

        return new_group

    def _destroy(self, original: Any) -> Any:
        def destroy(group: Any = None) -> None:
            if group in self._names and group is not dist.group.WORLD and group not in self._gloo:
                self.steps.append(Step("end", site().line, self._names[group]))
            original(group)

        return destroy

    def _batched(self, original: Any) -> Any:
        def batched(messages: Any) -> Any:
            self._batches += 1
            self._batch = self._batches
            try:
                return original(messages)
            finally:
                self._batch = None

        return batched

    def _wait(self, original: Any) -> Any:
        def wait(work: Any, *args: Any) -> Any:
            number = self._works.pop(work, None)
            if number is not None:
                self.steps.append(Step("wait", of=(number,)))
            return original(work, *args)

        return wait

    def _maker(self, original: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Tensor:
            tensor = original(*args, **kwargs)
            device = torch.device(kwargs.get("device") or "cpu")
            storage = StorageWeakRef(tensor.untyped_storage())
            by_autograd = sys._getframe(1).f_globals.get("__name__") == "torch.autograd"  # to begin backward with
            if device.type == "cpu" and not tensor.is_meta and storage not in self._on_gpu and not by_autograd:
                self._mark(storage, self._on_cpu if device.index is None else self._on_gpu)
            return tensor

        return make

    def _checks_values(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._only_here = True  # it reads its argument on CPUs, and on GPUs it does not
            try:
                return original(*args, **kwargs)
            finally:
                self._only_here = False

        return call

    def _new_tensor(self, original: Any) -> Any:
        def new_tensor(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            made = original(tensor, *args, **kwargs)
            if self._is_on_gpu(tensor) and "device" not in kwargs:
                self._mark(StorageWeakRef(made.untyped_storage()), self._on_gpu)
            return made

        return new_tensor

    def _to_cpu(self, original: Any) -> Any:
        def cpu(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if not self._is_on_gpu(tensor):
                return original(tensor, *args, **kwargs)
            self._read()
            copy = tensor.clone()
            self._on_gpu.discard(StorageWeakRef(copy.untyped_storage()))
            self._mark(StorageWeakRef(copy.untyped_storage()), self._on_cpu)
            return copy

        return cpu

    def _to(self, original: Any) -> Any:
        def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            places = [each for each in (*args[:1], kwargs.get("device")) if isinstance(each, (str, int, torch.device))]
            place = torch.device(places[0]) if places else None
            if place is None or place.type != "cpu" or not self._is_on_gpu(tensor):
                return original(tensor, *args, **kwargs)
            # From the GPU to the GPU nothing moves, and to the CPU it does: to torch here, it is the other way round.
            positional = args[1:] if args and places[0] is args[0] else args
            asked = dict(zip(("dtype", "non_blocking", "copy"), positional, strict=False)) | kwargs
            rest = {
                key: value
                for key, value in asked.items()
                if value is not None and key not in ("device", "non_blocking")
            }
            tensor = tensor.cpu() if place.index is None else tensor
            return original(tensor, tensor.dtype if "dtype" not in rest else rest.pop("dtype"), **rest)

        return to

    def _reader(self, original: Any) -> Any:
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._is_on_gpu(tensor):
                self._read()
            return original(tensor, *args, **kwargs)

        return read

    def _array(self, original: Any) -> Any:
        def array(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._is_on_gpu(tensor):
                self._break("memory", "numpy cannot read a tensor of the GPU; call tensor.cpu() first")
            return original(tensor, *args, **kwargs)

        return array


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in arguments or results that have memory of their own."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided and not value.is_meta and type(value).__name__ != "FakeTensor":
            yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
