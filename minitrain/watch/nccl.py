"""NCCL's rules: the steps of a rank's program, and the rules that it breaks whatever its messages wait for.

`alone` looks at the programs as they are: at tensors, and at the order in which groups are made and ended.
`minitrain.watch.replay` executes them.

**Source.** NCCL's user guide: "Creating a communicator" (all ranks of the parent take part in a split) and
"ncclCommFinalize". torch's `ProcessGroupNCCL`: all ranks must call `new_group`, and the end of a group waits for its
other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# What ncclDataType_t has; bool and the 8-bit floats travel as bytes (torch's getNcclDataType).
DTYPES = {"int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"}
DTYPES |= {"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "uint32", "uint64"}
COMPLEX = {"complex64", "complex128"}  # travel as twice as many real numbers
# "make" and "end" a group; "wait" for other steps, on the GPU; "host": the program waits for the GPU.
MESSAGES, BY_ALL = ("send", "receive"), ("make", "end")
ASIDE = (*BY_ALL, "wait", "host")  # steps that are not communication


@dataclass(frozen=True)
class Step:
    """One step of a rank's program."""

    verb: str  # "send", "receive", a collective's name, "make", "end", "wait" or "host"
    line: str = ""  # the line that called it: "minitrain/collectives/ring.py, line 40"
    group: str = ""  # the communicator, by a name that its ranks share
    peer: int | None = None  # the global rank at the other end of a message; None where it is open ("from any rank")
    elements: int = 0  # how many a message has; for a collective, how many this rank brings
    dtype: str = ""  # of the tensor: "float32"
    batch: int | None = None  # the number of the batch that a message is in; None outside batches
    on_cpu: bool = False  # whether the tensor would be in the CPU's memory
    of: tuple[int, ...] = ()  # for "wait", the numbers of the steps waited for
    same: tuple = ()  # further arguments on which all ranks of a collective must agree, such as the root

    def __str__(self) -> str:
        ends = {"send": f"(to={self.peer})", "receive": f"(source={self.peer})"}
        what = {"make": f"new_group of ranks {self.group}", "end": f"destroy_process_group of {self.group}"}
        return f"{what.get(self.verb, f'{self.verb}{ends.get(self.verb, str())} of {self.group}')} ({self.line})"


@dataclass(frozen=True)
class Broken:
    """A rule that a program breaks."""

    rule: str  # its name, a key of `RULES`
    ranks: tuple[int, ...]  # those that break it
    text: str  # what happens, with the lines

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


RULES = {
    "memory": "tensors are in the GPU's memory",
    "dtype": "NCCL has the tensor's dtype",
    "source": "a receive names its sender",
    "make": "all ranks make all groups, in one order",
    "end": "ranks end the groups that they share in one order",
    "match": "ranks of a communicator call the same collectives, of the same size, in one order",
    "hang": "everything that starts can complete",
    "one at a time": "everything can complete on a GPU that runs one of NCCL's kernels at a time",
}

Programs = Sequence[Sequence[Step]]
Groups = Mapping[str, Sequence[int]]


def alone(programs: Programs) -> list[Broken]:
    """The rules that the programs break whatever their messages wait for."""
    return [*_tensors(programs), *_made(programs), *_ended(programs)]


def _tensors(programs: Programs) -> list[Broken]:
    """Rules that one rank breaks by itself."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank, program in enumerate(programs):
        for step in program:
            if step.verb in ASIDE:
                continue
            if step.on_cpu:
                text = f"{step} is given a tensor in the CPU's memory; bring it to the GPU: tensor.to(world.device)"
                found.setdefault(("memory", text), []).append(rank)
            elif step.dtype not in DTYPES | COMPLEX:
                text = f"{step} is given {step.dtype}, which NCCL cannot carry; view the tensor as bytes"
                found.setdefault(("dtype", text), []).append(rank)
            elif step.verb == "receive" and step.peer is None:
                text = f"{step} takes a message from any rank, which NCCL cannot; name the source"
                found.setdefault(("source", text), []).append(rank)
    return [
        Broken(rule, tuple(sorted(set(ranks))), f"{text} (rank {_listed(sorted(set(ranks)))})")
        for (rule, text), ranks in found.items()
    ]


def _made(programs: Programs) -> list[Broken]:
    """Groups are made by splitting everyone's communicator, so all ranks must take part, in the same order."""
    made = [[step for step in program if step.verb == "make"] for program in programs]
    for number in range(max(map(len, made), default=0)):
        theirs = [steps[number] if number < len(steps) else None for steps in made]
        names = {step.group if step else None for step in theirs}
        if len(names) > 1:
            said = "; ".join(f"rank {rank}: {step or 'nothing'}" for rank, step in enumerate(theirs))
            text = f"ranks differ in the next group: {said}; all ranks must call new_group, members or not"
            return [Broken("make", tuple(range(len(programs))), text)]
    return []


def _ended(programs: Programs) -> list[Broken]:
    """The end of a communicator waits for its other ranks, so two ranks must end what they share in one order."""
    ended = [[step for step in program if step.verb == "end"] for program in programs]
    for first, mine in enumerate(ended):
        for second in range(first + 1, len(ended)):
            theirs = ended[second]
            shared = {step.group for step in mine} & {step.group for step in theirs}
            orders = [[step for step in steps if step.group in shared] for steps in (mine, theirs)]
            for one, other in zip(*orders, strict=False):
                if one.group != other.group:
                    text = (
                        f"ranks end groups in different orders: rank {first} in {one}, rank {second} in {other}; "
                        "each end waits for the other ranks of its group; end them in one order on all ranks"
                    )
                    return [Broken("end", (first, second), text)]
    return []


def _listed(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))
