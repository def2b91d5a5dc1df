"""Executes programs under NCCL's rules, in pure Python: would they hang or fail on GPUs?

`replay` takes what each rank's program asked for, in order. Each communicator has one queue per rank, and the head of a
queue starts when the tensors that it needs are ready. A message completes together with its other end, and a collective
when all ranks have reached it. `wait()` holds back the rank's later work on the GPU, but not its program, which only
stops where it reads a result on the CPU. If something is left when nothing can go on, the program hangs.

It replays twice. The second time, each GPU has a single queue for all its communicators. NCCL's kernels wait for each
other inside the GPUs, and a GPU may have no room for two at once. So a program that only the first replay completes can
hang on one machine and run on another.

**Source.** NCCL's user guide: "Point-to-point communication" (ncclSend and ncclRecv block until both ends have arrived,
unless they are in one group call), "Using multiple NCCL communicators concurrently". torch's `ProcessGroupNCCL`: where
a group was made with a `device_id`, its unbatched messages run in order on its one communicator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from minitrain.watch.nccl import BY_ALL, MESSAGES, Broken, Groups, Programs, Step, alone


def replay(programs: Programs, groups: Groups) -> list[Broken]:
    """Execute the ranks' programs under NCCL's rules; returns the rules that they break."""
    broken = alone(programs)
    for name, one_at_a_time in (("hang", False), ("one at a time", True)):
        if broken:
            break  # what follows would only be its consequence
        broken = Replay(programs, groups, one_at_a_time).run(name)
    return broken


@dataclass(eq=False)
class Entry:
    """What lies in a queue: one operation, or a batch of messages that proceed together."""

    rank: int
    steps: list[int]  # the numbers of the steps
    after: list[Entry]  # the entries that the GPU's own work had waited for when this one was put into the queue
    matched: set[int] = field(default_factory=set)  # the steps that have met their other end
    done: bool = False  # whether it is complete

    def ready(self) -> bool:
        self.after = [entry for entry in self.after if not entry.done]
        return not self.after


class Replay:
    """The state of all ranks' programs and queues."""

    def __init__(self, programs: Programs, groups: Groups, one_at_a_time: bool):
        self.programs, self.groups, self.one_at_a_time = programs, groups, one_at_a_time
        ranks = range(len(programs))
        self.at = [0 for _ in ranks]  # the step that each program is at
        self.queues: list[dict[str, list[Entry]]] = [{} for _ in ranks]
        self.entries: list[dict[int, Entry]] = [{} for _ in ranks]  # step -> its entry
        self.waited: list[list[Entry]] = [[] for _ in ranks]  # what each GPU's own work waits for
        self.broken: list[Broken] = []

    def run(self, name: str) -> list[Broken]:
        """Go on until nothing can; returns the rules that were broken."""
        progress = True
        while progress and not self.broken:
            progress = False
            for rank in range(len(self.programs)):
                while self._advance(rank):
                    progress = True
            for rank, queues in enumerate(self.queues):
                for queue in list(queues.values()):
                    while queue and not self.broken and self._complete(rank, queue):
                        progress = True
        if not self.broken and any(self._stuck(rank) for rank in range(len(self.programs))):
            self.broken.append(self._hang(name))
        return self.broken

    def _advance(self, rank: int) -> bool:
        """Let a rank's program take its next step, if that does not have to wait."""
        program, at = self.programs[rank], self.at[rank]
        if at == len(program):
            return False
        step = program[at]
        if step.verb in BY_ALL:
            members = range(len(self.programs)) if step.verb == "make" else self.groups[step.group]
            if not all(self._is_at(member, step) for member in members):
                return False
            for member in members:
                self.at[member] += 1
            return True
        if step.verb == "wait":
            self.waited[rank] += [self.entries[rank][number] for number in step.of if number in self.entries[rank]]
        elif step.verb == "host":
            self.waited[rank] = [entry for entry in self.waited[rank] if not entry.done]
            if self.waited[rank]:
                return False
        else:
            self._put(rank, at, step)
        self.at[rank] += 1
        return True

    def _is_at(self, rank: int, step: Step) -> bool:
        program, at = self.programs[rank], self.at[rank]
        return at < len(program) and (program[at].verb, program[at].group) == (step.verb, step.group)

    def _put(self, rank: int, number: int, step: Step) -> None:
        """Put an operation into its queue, with the others of its batch if it is in one."""
        queue = self.queues[rank].setdefault("" if self.one_at_a_time else step.group, [])
        if step.batch is not None and queue:
            last = queue[-1]
            if self.programs[rank][last.steps[-1]].batch == step.batch:
                last.steps.append(number)
                self.entries[rank][number] = last
                return
        self.waited[rank] = [entry for entry in self.waited[rank] if not entry.done]
        entry = Entry(rank, [number], list(self.waited[rank]))
        self.entries[rank][number] = entry
        queue.append(entry)

    def _head(self, rank: int, group: str) -> Entry | None:
        """What a rank's communicator is ready for."""
        queue = self.queues[rank].get("" if self.one_at_a_time else group)
        if not queue or not queue[0].ready() or self._growing(queue[0]):
            return None
        head = queue[0]
        return head if self.programs[rank][head.steps[0]].group == group else None

    def _growing(self, entry: Entry) -> bool:
        """Whether the program is still putting messages into this batch."""
        program, last = self.programs[entry.rank], entry.steps[-1]
        batch, at = program[last].batch, self.at[entry.rank]
        return batch is not None and at == last + 1 and at < len(program) and program[at].batch == batch

    def _complete(self, rank: int, queue: list[Entry]) -> bool:
        """Complete the head of a queue, or a message of it, if all its ranks have arrived."""
        head, program = queue[0], self.programs[rank]
        group = program[head.steps[0]].group
        if self._head(rank, group) is not head:
            return False
        if program[head.steps[0]].verb not in MESSAGES:
            return self._collective(group)
        return any([self._message(rank, head, number) for number in head.steps if number not in head.matched])

    def _collective(self, group: str) -> bool:
        heads = [self._head(rank, group) for rank in self.groups[group]]
        if any(head is None for head in heads):
            return False
        steps = [self.programs[head.rank][head.steps[0]] for head in heads if head]
        if any(step.verb in MESSAGES for step in steps):
            return False
        told = [(step.verb, step.dtype, step.same) for step in steps]
        if any(each != told[0] for each in told):
            said = "; ".join(
                f"rank {rank}: {step}, {step.same or step.elements} of {step.dtype}"
                for rank, step in zip(self.groups[group], steps, strict=True)
            )
            self.broken.append(Broken("match", tuple(self.groups[group]), f"collectives do not fit together: {said}"))
            return False
        for head in heads:
            if head:
                self._finish(head, group)
        return True

    def _message(self, rank: int, head: Entry, number: int) -> bool:
        """Match a message with its other end, which must be what the other rank's queue is ready for."""
        step = self.programs[rank][number]
        assert step.peer is not None
        other = self._head(step.peer, step.group)
        if other is None:
            return False
        wanted = "receive" if step.verb == "send" else "send"
        for there in other.steps:
            theirs = self.programs[step.peer][there]
            if there in other.matched or theirs.verb != wanted or theirs.peer != rank:
                continue
            if (theirs.elements, theirs.dtype) != (step.elements, step.dtype):
                text = "; ".join(
                    f"rank {who}: {each}, {each.elements} of {each.dtype}"
                    for who, each in ((rank, step), (step.peer, theirs))
                )
                self.broken.append(Broken("match", (rank, step.peer), f"the two ends of a message differ: {text}"))
                return False
            head.matched.add(number)
            other.matched.add(there)
            for entry in (head, other):
                if len(entry.matched) == len(entry.steps) and not entry.done:
                    self._finish(entry, step.group)
            return True
        return False

    def _finish(self, entry: Entry, group: str) -> None:
        entry.done = True
        self.queues[entry.rank]["" if self.one_at_a_time else group].remove(entry)

    def _stuck(self, rank: int) -> bool:
        return self.at[rank] < len(self.programs[rank]) or any(self.queues[rank].values())

    def _blocking(self, rank: int) -> Step | None:
        """What a stuck rank waits in: the first operation, in the program's order, that could start and is not done."""
        waiting = [queue[0] for queue in self.queues[rank].values() if queue and queue[0].ready()]
        numbers = [number for entry in waiting for number in entry.steps if number not in entry.matched]
        if numbers:
            return self.programs[rank][min(numbers)]
        if self.at[rank] < len(self.programs[rank]):
            return self.programs[rank][self.at[rank]]
        return None

    def _lacking(self, rank: int, step: Step) -> list[int]:
        """The ranks that a step waits for."""
        if step.verb in MESSAGES:
            return [step.peer] if step.peer is not None else []
        members = range(len(self.programs)) if step.verb == "make" else self.groups.get(step.group, ())
        here = [member for member in members if member != rank]
        blocking = {member: self._blocking(member) for member in here}
        return [each for each in here if not (it := blocking[each]) or (it.verb, it.group) != (step.verb, step.group)]

    def _hang(self, name: str) -> Broken:
        """Which rank waits for whom in which line, and the cycle if there is one."""
        blocked = {rank: step for rank in range(len(self.programs)) if (step := self._blocking(rank)) is not None}
        waits = {rank: self._lacking(rank, step) for rank, step in blocked.items()}
        circle = _circle(waits)
        shown = circle or sorted(blocked)
        lines = []
        for rank in shown:
            ended = [f"rank {other}, whose program has ended" for other in waits[rank] if other not in blocked]
            others = [f"rank {other}" for other in waits[rank] if other in blocked]
            lines.append(f"rank {rank} in {blocked[rank]} for {' and '.join(others + ended)}")
        kind = "a circle" if circle else "no circle"
        return Broken(name, tuple(shown), f"these ranks wait forever ({kind}): " + "; ".join(lines))


def _circle(waits: Mapping[int, Sequence[int]]) -> list[int]:
    """Ranks of which each waits for the next and the last for the first; none if there are none."""
    ends: set[int] = set()  # those from which no circle can be reached

    def follow(path: list[int]) -> list[int]:
        for other in waits.get(path[-1], ()):
            if other in path:
                return path[path.index(other) :]
            if other not in ends and (found := follow([*path, other])):
                return found
        ends.add(path[-1])
        return []

    return next((found for start in waits if (found := follow([start]))), [])
