"""The ledger: every communication of this rank, counted as it is made.

torch hands each communication to its dispatcher, as it does each operation on tensors, and a dispatch mode can watch.
So the ledger sees messages, collectives, and calls made inside backward, whatever code makes them. It sees the threads
that enter it: a thread that communicates by itself must also use `with ledger:`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from minitrain.comm.modes import Mode

VERBS = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "send")


def verb_of(name: str) -> str:
    """How people call an operation of the dispatcher: "_allgather_base_" is an all_gather."""
    plain = name.replace("_", "")
    if plain.startswith("recv"):
        return "receive"
    return next((verb for verb in VERBS if plain.startswith(verb.replace("_", ""))), name)


@dataclass(frozen=True)
class Entry:
    """One communication of this rank.

    Attributes:
        operation: "send", "receive", "all_reduce", "all_gather", …
        bytes: For a message the bytes sent or received. For a collective its payload: the bytes of the full tensor,
            which is the larger of what a rank puts in and gets out (as nccl-tests counts it).
        peer: The other rank of a message, within the group; None for a collective.
        group: The group's description, as `mesh_tp`, or its size where it has none.
    """

    operation: str
    bytes: int
    peer: int | None
    group: str


class Ledger:
    """Records the communication of this rank while it is open: `with Ledger() as ledger: …`.

    Control messages (`minitrain.comm.control`) do not appear. A ledger may be entered again, and by several threads.

    Examples:
        >>> from minitrain.comm import Ledger
        >>> with Ledger() as ledger:
        ...     dist.all_reduce(torch.ones(1000))
        >>> assert (ledger.calls("all_reduce"), ledger.payload("all_reduce")) == (1, 4000)
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._modes = threading.local()

    def __enter__(self) -> Ledger:
        mode = _Recorder(self.entries)
        mode.__enter__()
        self._modes.stack = [*getattr(self._modes, "stack", []), mode]
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.stack.pop().__exit__(*error)

    @property
    def sent(self) -> int:
        """Bytes of the point-to-point messages that this rank sent."""
        return sum(entry.bytes for entry in self.entries if entry.operation == "send")

    @property
    def received(self) -> int:
        """Bytes of the point-to-point messages that this rank received."""
        return sum(entry.bytes for entry in self.entries if entry.operation == "receive")

    @property
    def messages(self) -> int:
        """Number of point-to-point messages that this rank sent."""
        return self.calls("send")

    def calls(self, operation: str, group: str | None = None) -> int:
        """How often this rank called `operation`, on `group` only where one is named."""
        return sum(1 for _ in self._select(operation, group))

    def payload(self, operation: str, group: str | None = None) -> int:
        """Bytes of the full tensors that went through the collective `operation`."""
        return sum(entry.bytes for entry in self._select(operation, group))

    def _select(self, operation: str, group: str | None) -> Iterable[Entry]:
        return (e for e in self.entries if e.operation == operation and group in (None, e.group))

    def __str__(self) -> str:
        if not self.entries:
            return "nothing was sent or received"
        counts: dict[tuple[str, str], list[int]] = {}
        for entry in self.entries:
            where = "" if entry.peer is None else f"{'to' if entry.operation == 'send' else 'from'} {entry.peer}"
            line = counts.setdefault((entry.operation, where), [0, 0])
            line[0] += 1
            line[1] += entry.bytes
        rows = ((*key, *count) for key, count in counts.items())
        return "\n".join(f"{verb:<15}{where:<8}{calls:>6} ×{size:>14,} B" for verb, where, calls, size in rows)


class _Recorder(Mode):
    def __init__(self, entries: list[Entry]):
        super().__init__()
        self.entries = entries

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            self._record(func, args, kwargs or {}, result)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func._schema.name.split("::")[1]
        if name in ("wait_tensor", "_wrap_tensor_autograd"):
            return  # waits for a communication that has been recorded
        values = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        group = group_of(values)
        sizes = [_bytes(value) for key, value in values.items() if key != "tensor" or name != "barrier"]
        peer = values.get("dst", values.get("src"))
        self.entries.append(
            Entry(verb_of(name), max([*sizes, _bytes(result)]), peer, _describe(group) if group else "")
        )


def group_of(values: dict[str, Any]) -> dist.ProcessGroup | None:
    if "process_group" in values:
        boxed = values["process_group"]
        return boxed if isinstance(boxed, dist.ProcessGroup) else dist.ProcessGroup.unbox(boxed)
    if "group_name" in values:  # the functional collectives name their group
        return dist.distributed_c10d._resolve_process_group(values["group_name"])
    return None


def _describe(group: dist.ProcessGroup) -> str:
    return group.group_desc if group.group_desc not in ("", "undefined") else f"{group.size()} ranks"


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(_bytes(item) for item in value)
    return 0
