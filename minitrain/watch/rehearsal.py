"""A rehearsal: run on CPUs what would run on GPUs, and see what NCCL would make of it.

gloo carries the messages, so the program runs and its numbers are right. Code that asks for the backend is told "nccl",
and so takes the branches that it would take on GPUs. A dispatch mode records what each rank asks for, in program order,
with the line of code, and `minitrain.watch.memories` tells which tensors would be on the GPU. Then
`minitrain.watch.replay` replays the record under NCCL's rules. Where each rank has a GPU of its own, the program runs
there, and is recorded and replayed likewise.

Not rehearsed: code that asks for a device of type "cuda", threads that communicate by themselves, and NCCL's speed,
memory and rounding.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from minitrain.comm import groups
from minitrain.comm.control import gather_objects
from minitrain.comm.ledger import group_of, verb_of
from minitrain.comm.modes import Mode
from minitrain.watch.memories import GPU, Devices, Memories, Patches, tensors_in
from minitrain.watch.nccl import ASIDE, Broken, Step
from minitrain.watch.replay import replay
from minitrain.watch.sites import site

TENSORS = re.compile("tensor|input|output")  # in the names of arguments


class NotOnGPUs(RuntimeError):
    """A program runs with gloo, but would not run with NCCL."""


class Rehearsal(Mode):
    """Records what this rank asks for, from `start()` to `stop()`; `check()` replays it."""

    def __init__(self, device: torch.device = GPU) -> None:
        super().__init__()
        self.begin()
        self._device = device
        self._memories: Memories | Devices = Devices(self._read)
        if device == GPU:
            self._memories = Memories(self._read, lambda text: self._break("memory", text))
        self._patches = Patches()
        self._names: dict[Any, str] = {dist.group.WORLD: "everyone"}
        self._members: dict[str, tuple[int, ...]] = {"everyone": tuple(range(dist.get_world_size()))}
        self._counts: Counter[tuple[int, ...]] = Counter()
        self._gloo: set[Any] = set()
        self._batch: int | None = None
        self._batches = 0

    @classmethod
    def start(cls, device: torch.device = GPU) -> Rehearsal:
        """Start recording what runs on a device; from now on `backend()` answers "nccl"."""
        rehearsal = cls(device)
        groups.rehearsed = rehearsal._backend
        rehearsal._patch()
        rehearsal._memories.patch(rehearsal._patches)
        rehearsal.__enter__()
        return rehearsal

    def stop(self) -> None:
        """Give torch back its functions."""
        self.__exit__(None, None, None)
        self._patches.undo()
        groups.rehearsed = None

    def begin(self) -> None:
        """Drop the record so far."""
        self.steps: list[Step] = []
        self.reads: Counter[str] = Counter()  # how often the program has waited for the GPU, by line
        self._broken: dict[Broken, None] = {}
        self._works: dict[Any, tuple[int, ...]] = {}

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

    # What is recorded.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if func.namespace == "c10d":
            return self._communicate(func, name, args, kwargs)
        return self._memories.follow(func, name, args, kwargs)

    def _communicate(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        values = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        group = group_of(values)
        number = None
        if group is not None and group not in self._gloo:
            number = len(self.steps)
            self.steps.append(self._described(verb_of(name), name, values, group))
            if name == "barrier":
                self.steps += [Step("wait", of=(number,)), Step("host", site().line)]
        result = func(*args, **kwargs)
        if number is not None:
            last = result[-1] if isinstance(result, (tuple, list)) else result
            if isinstance(last, torch.ScriptObject):
                self._works[dist.Work.unbox(last)] = (number,)
        return result

    def _described(self, verb: str, name: str, values: dict[str, Any], group: dist.ProcessGroup) -> Step:
        ranks = self._members[self._names[group]]
        tensors = [each for key, value in values.items() if TENSORS.search(key) for each in tensors_in(value)]
        peer = values.get("dst", values.get("src"))
        given = list(tensors_in(values.get("input_tensors", values.get("input_tensor", values.get("input", tensors)))))
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
            name != "barrier" and self._memories.on_cpu(tensors),
            same=same,
        )

    def _read(self) -> None:
        """The program waits until the GPU has finished its work."""
        line = site().line
        self.reads[line] += 1
        if self.steps and self.steps[-1].verb != "host":
            self.steps.append(Step("host", line))

    def _break(self, rule: str, text: str) -> None:
        self._broken[Broken(rule, (dist.get_rank(),), f"{text} ({site().line})")] = None

    # What the dispatcher does not see.

    def _patch(self) -> None:
        """Look at the functions of torch that make groups, end them, and wait."""
        replace = self._patches.replace
        replace(distributed_c10d, "_new_group_with_tag", self._new_group)
        for module in (distributed_c10d, dist, dist.device_mesh):
            replace(module, "split_group", self._split_group)
        for module in (distributed_c10d, dist):
            replace(module, "destroy_process_group", self._destroy)
            replace(module, "batch_isend_irecv", self._batched)
        replace(distributed_c10d, "_get_object_coll_device", lambda original, group=None: str(self._device))
        replace(dist.Work, "wait", self._wait)

    def _new_group(
        self, original: Any, ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        members = tuple(range(dist.get_world_size()) if ranks is None else sorted(ranks))
        label, line = ",".join(map(str, members)), site().line
        group = original(ranks, timeout, backend, *args, **kwargs)
        inside = dist.get_rank() in members
        if inside:
            self._name(group, members)
        if inside and str(backend) == "gloo":
            self._gloo.add(group)
        else:
            # Whatever the backend: ranks outside take part in a split of everyone's communicator.
            self.steps.append(Step("make", line, label))
        return group

    def _split_group(
        self, original: Any, parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        parts = [tuple(sorted(part)) for part in split_ranks]
        line = site().line
        group = original(parent_pg, split_ranks, *args, **kwargs)
        if group is not None:
            self._name(group, next(part for part in parts if dist.get_rank() in part))
        self.steps.append(Step("make", line, " and ".join(",".join(map(str, part)) for part in parts)))
        return group

    def _name(self, group: Any, members: tuple[int, ...]) -> None:
        self._counts[members] += 1
        self._names[group] = name = f"{','.join(map(str, members))}#{self._counts[members]}"
        self._members[name] = members

    def _destroy(self, original: Any, group: Any = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            name = self._names.pop(group, "")  # no longer referenced, so that its threads end
            if name and group not in self._gloo:
                self.steps.append(Step("end", site().line, name))
            self._gloo.discard(group)
        original(group)

    def _batched(self, original: Any, messages: Any) -> Any:
        self._batches += 1
        self._batch = self._batches
        first = len(self.steps)
        try:
            works = original(messages)
        finally:
            self._batch = None
        if len(works) < len(messages):  # NCCL has one work for all of a batch
            self._works = {work: of for work, of in self._works.items() if of[0] < first}
            self._works[works[0]] = tuple(range(first, len(self.steps)))
        return works

    def _wait(self, original: Any, work: Any, *args: Any) -> Any:
        if numbers := self._works.pop(work, ()):
            self.steps.append(Step("wait", of=numbers))
        return original(work, *args)
