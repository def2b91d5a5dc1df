"""Memory in flight: while a tensor is being sent or received, any other use of it is refused until `wait()` returns.

A tensor that changes while it is sent arrives changed, or in part. One that is read while it is received shows the old
values, or some of them. Both errors are silent, and may go unnoticed on one machine and not on another. So where ranks
are checked, each operation is inspected for as long as something is in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch

from minitrain.comm.groups import backend
from minitrain.comm.modes import Mode
from minitrain.watch.observers import Communication, Watch

COMMUNICATE = ("c10d", "c10d_functional", "_c10d_functional")  # checked before they start
SHAPE_ONLY = ("empty_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full")
SHAPE_ONLY = (*SHAPE_ONLY, "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
# What reads a tensor without an operation of torch's dispatcher: printing it, and making a list or an array of it.
READERS = {"__repr__": "print", "__format__": "format", "tolist": "tolist", "numpy": "numpy", "__array__": "numpy"}


@dataclass(eq=False)
class Flight:
    """Memory that a communication reads or writes, from its start until it has been waited for."""

    what: str  # the communication, with its line: "all_reduce (<cell 3>, line 2)"
    start: int  # the address of the first byte
    end: int  # the address after the last one
    written: bool  # whether it is written: then it may not be read elsewhere either
    storage: StorageWeakRef  # A weak reference to the memory itself: once it is freed, these addresses may be reused
    handle: ref[Flights]  # A weak reference to what its handle keeps: a handle that was dropped will not be waited for
    waited: bool = False  # whether it is being waited for, and may be written by the waiting code


class Flights(Watch):
    """Guards the memory of one communication, from its start on.

    Raises:
        RuntimeError: Some of it is in flight already.
    """

    def __init__(self, communication: Communication, what: str):
        _flights.difference_update([flight for flight in tuple(_flights) if flight.storage.expired()])
        self.memory: list[Flight] = []
        for tensor, written in memory_of(communication):
            if not tensor.numel() or communication.ahead:
                continue
            if other := in_the_way(tensor, written):
                raise StillInFlight(what, other, written)
            first, storage = tensor.data_ptr(), StorageWeakRef(tensor.untyped_storage())
            self.memory.append(Flight(what, first, first + tensor.nbytes, written, storage, ref(self)))
        _flights.update(self.memory)
        look_on()

    def waits(self) -> None:
        for flight in self.memory:
            flight.waited = True

    def ends(self) -> None:
        _flights.difference_update(self.memory)
        look_on()


_flights: set[Flight] = set()


def forget_dropped() -> None:
    """When a new cell begins, forget what an earlier one never waited for: its handle is gone."""
    _flights.difference_update([flight for flight in tuple(_flights) if flight.handle() is None])
    look_on()


def memory_of(communication: Communication) -> Iterator[tuple[Tensor, bool]]:
    """The tensors that a communication reads or writes, and whether it writes."""
    if communication.verb == "send" and communication.tensor.is_cuda and backend(communication.group) == "gloo":
        return  # a copy in the CPU's memory is sent
    if communication.verb == "send" or communication.into is not None:
        yield communication.tensor, False
        if communication.into is not None:
            yield communication.into, True
    else:
        yield communication.tensor, True


class StillInFlight(RuntimeError):
    """Memory was used too early."""

    pending = True

    def __init__(self, operation: str, flight: Flight, writes: bool):
        does = "would change" if writes else "would read"
        done = "receives into" if flight.written else "sends"
        super().__init__(f"{operation} {does} memory that {flight.what} still {done}; call wait() on its handle first")


def in_the_way(tensor: Tensor, writes: bool) -> Flight | None:
    """What is in flight in this tensor's memory, and must not be read, or written, now."""
    if not any(flight.written or writes for flight in tuple(_flights)):
        return None  # what is only sent may be read
    # Sparse tensors, those on the meta device, and those of modes that only trace have no memory of their own.
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return None
    try:
        start = tensor.data_ptr()
    except RuntimeError:
        return None
    reach = tensor.numel()
    if with_gaps := not tensor.is_contiguous():  # then the last element counts
        reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = start + reach * tensor.element_size()
    for flight in tuple(_flights):
        if (
            flight.start < end
            and start < flight.end
            and not flight.waited
            and (writes or flight.written)
            and not flight.storage.expired()
        ):
            if not with_gaps or _touches(tensor, flight, reach):
                return flight
    return None


def _touches(tensor: Tensor, flight: Flight, reach: int) -> bool:
    """Whether an element of a tensor with gaps lies in a flight's memory."""
    places = torch.arange(reach, device="cpu").as_strided(tensor.shape, tensor.stride())
    first = (flight.start - tensor.data_ptr()) // tensor.element_size()
    last = -(-(flight.end - tensor.data_ptr()) // tensor.element_size())
    return bool(((places >= first) & (places < last)).any())


class _Operations(Mode):
    """Inspects each operation on tensors, including those of backward."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _flights and func.namespace not in COMMUNICATE:
            _look_at(func, args, kwargs)
        return func(*args, **kwargs)


def guard_readers() -> None:
    """From now on, also watch what torch's dispatcher does not see."""
    for name, does in READERS.items():
        read = getattr(Tensor, name)
        if not hasattr(read, "guarded"):
            setattr(Tensor, name, _guarded(read, does))


def _guarded(read: Any, does: str) -> Any:
    @wraps(read)
    def guarded(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if _flights and (other := in_the_way(tensor, writes=False)):
            raise StillInFlight(does, other, writes=False)
        return read(tensor, *args, **kwargs)

    vars(guarded)["guarded"] = True
    return guarded


def _look_at(func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    for place, name, writes in _uses(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, Tensor) and (other := in_the_way(tensor, writes)):
                raise StillInFlight(func._schema.name.removeprefix("aten::"), other, writes)


@cache
def _uses(func: Any) -> list[tuple[int, str, bool]]:
    """Which arguments an operation reads or writes: by position and by name, and whether it writes."""
    uses = []
    for place, argument in enumerate(func._schema.arguments):
        writes = argument.alias_info is not None and argument.alias_info.is_write
        is_view = argument.alias_info is not None and not writes  # it only looks at the memory in another way
        if "Tensor" in str(argument.type) and not is_view and func._schema.name.split("::")[1] not in SHAPE_ONLY:
            uses.append((place, argument.name, writes))
    return uses


_operations = _Operations()


def look_on() -> None:
    """Watch this thread's operations while something is in flight, and only then.

    The mode lies beneath all that the reader has entered, such as a ledger: those may end in between, and torch ends
    the one on top.
    """
    others = _python_dispatch._get_current_dispatch_mode_stack()
    if bool(_flights) == (_operations in others):
        return
    for _ in others:
        _python_dispatch._pop_mode()
    for mode in ([_operations] if _flights else []) + [mode for mode in others if mode is not _operations]:
        _python_dispatch._push_mode(mode)
