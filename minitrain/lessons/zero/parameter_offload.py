"""The demo of `parameter_offload`: bytes that cross, what is fetched ahead, and that host and files have the bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import product, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.costs import parameter_offload as costs
from minitrain.costs import zero as zero_costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.zero import small
from minitrain.lessons.zero.offload import Crossings
from minitrain.zero import parameter_offload as technique
from minitrain.zero import stage3

INFINITY = "Rajbhandari et al. 2021"
WHERE = ("host", "disk")


@contextmanager
def made(world: World, where: str) -> Iterator[technique.ParameterOffload]:
    """The chain of layers with its shards on the host, or in files that are removed afterwards."""
    with TemporaryDirectory() as folder:
        yield small.wrap(world, technique.ParameterOffload, folder=folder if where == "disk" else "")


class AtOnce:
    """A reader that reads before it returns, so that counters of this thread see it; and a diary of what was read."""

    def __init__(self, note: Callable[[int], None]):
        self._note = note

    def submit(self, read: Callable[..., Tensor], shard: Tensor) -> Future[Tensor]:
        self._note(shard.data_ptr())
        future: Future[Tensor] = Future()
        future.set_result(read(shard))
        return future


class Diary:
    """What happens to which block: "fetch" begins, or "free" ends its work; and most bytes of whole parameters."""

    def __init__(self, model: technique.ParameterOffload):
        self.events: list[tuple[str, int]] = []
        self.most = 0
        self._units = model.units
        numbers = {unit.shard.data_ptr(): number for number, unit in enumerate(model.units)}
        for number, unit in enumerate(model.units):
            unit.reader = AtOnce(lambda address: self.note("fetch", numbers[address]))  # type: ignore[assignment]
            unit.reshard = partial(self.freed, unit.reshard, number)  # type: ignore[method-assign]

    def note(self, what: str, number: int) -> None:
        self.events.append((what, number))
        self.most = max(self.most, sum(unit.flat.untyped_storage().nbytes() for unit in self._units))

    def freed(self, reshard: Callable[[], None], number: int) -> None:
        self.note("free", number)
        reshard()

    @property
    def fetches(self) -> list[int]:
        """Blocks in the order in which they were fetched."""
        return [number for what, number in self.events if what == "fetch"]

    @property
    def ahead(self) -> int:
        """Fetches that began while another block had been fetched and not yet freed."""
        count, whole = 0, set[int]()
        for what, number in self.events:
            if what == "fetch":
                count += bool(whole)
                whole.add(number)
            else:
                whole.discard(number)
        return count


def crossings(world: World, micro_batches: int) -> list[Claim]:
    """Claims on the bytes that cross in a step, on what the device holds at most, and on the order of the fetches."""
    arriving, leaving, most, ahead, order = {}, {}, {}, {}, {}
    once = [*range(small.LAYERS), *reversed(range(small.LAYERS))]
    for where, many in product(WHERE, (micro_batches, 1)):
        case = f"{where}, A = {many}"
        with made(world, where) as model:
            small.step(world, model)
            model.zero_grad()
            diary = Diary(model)
            shards = [unit.shard for unit in model.units]
            with Crossings([*shards, *optimizer_states(model.optimizer)]) as found:
                small.step(world, model, micro_batches=many)
        expected = costs.crossing(small.lines(), world.size, many)
        arriving[case] = Claim("", "2A · wΨ/n", expected[0], found.back, "B", f"{INFINITY}, §6.1")
        leaving[case] = Claim("", "A · wΨ/n", expected[1], found.out, "B", f"{INFINITY}, §6.1")
        predicted = costs.whole_at_once(small.lines(), world.size)
        most[case] = Claim("", "max over k of Ψₖ + Ψₖ₊₁", predicted, diary.most, "B", f"{INFINITY}, §6.2")
        predicted = costs.fetched_ahead(small.LAYERS, many)
        ahead[case] = Claim("", "2A(L − 1)", predicted, diary.ahead, "1", f"{INFINITY}, §6.2")
        wrong = sum(one != other for one, other in zip_longest(diary.fetches, many * once))
        order[case] = Claim("", "0 … L−1, L−1 … 0", 0, wrong, "1", "Cui et al. 2016, §3", "compared")
    step = f"in a step of A = {micro_batches} micro-batches, and of one"
    on = "host and disk"
    return [
        fold(f"bytes of parameters that come to the device {step}, {on}", arriving, key=True),
        fold(f"bytes of gradients that leave the device {step}, {on}", leaving, key=True),
        fold(f"most bytes of whole parameters on the device, {on}", most, key=True),
        fold(f"fetches that begin while another block runs, {step}", ahead, key=True),
        fold(f"fetches out of the order in which blocks run, {step}", order),
    ]


def held(world: World) -> Claim:
    """The claim on the bytes outside the device: files, and parameters, gradients and states on the host."""
    cases = {}
    rest = zero_costs.held(3, small.lines(), world.size)
    parameters = costs.held_outside(small.lines(), world.size)
    with made(world, "host") as model:
        small.step(world, model)
        mine = [tensor for unit in model.units for tensor in (unit.shard, unit.shard.grad, unit.flat)]
        measured = storage_bytes([*mine, *optimizer_states(model.optimizer)])
        predicted = parameters + rest["gradients"] + rest["optimizer states"]
        cases["all on the host"] = Claim("", "(4 + 4 + 8)Ψ/n", predicted, measured, "B", f"{INFINITY}, §5.1")
    with TemporaryDirectory() as folder:
        small.wrap(world, technique.ParameterOffload, folder=folder)
        measured = sum(path.stat().st_size for path in Path(folder).iterdir())
        cases["files"] = Claim("", "wΨ/n", parameters, measured, "B", f"{INFINITY}, §5.1")
    return fold("bytes of all states on the host, and bytes of files with parameters on disk", cases)


def like_stage3(world: World) -> list[Claim]:
    """The claim that three steps leave stage 3's bits on the host and in the files: the same arithmetic elsewhere.

    Not where the device is a GPU: it and the CPU, which makes the step here, may round differently.
    """
    if world.device.type != "cpu":
        return []
    right = small.wrap(world, stage3.Zero3)
    cases = {}
    with TemporaryDirectory() as folder:
        models = {
            "host": small.wrap(world, technique.ParameterOffload),
            "disk": small.wrap(world, technique.ParameterOffload, folder=folder),
        }
        for each in (right, *models.values()):
            for number in range(3):
                small.step(world, each, number, micro_batches=2)
                each.zero_grad()
        files = [f"{folder}/rank{world.rank}.block{number}" for number in range(small.LAYERS)]
        # Read as any program would, not through the memory into which they are mapped.
        read = [torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.float32) for path in files]
        found = {"host": [unit.shard for unit in models["host"].units], "disk": read}
    for where, shards in found.items():
        pairs = zip(shards, right.units, strict=True)
        different = sum(int((shard != unit.shard.cpu()).sum()) for shard, unit in pairs)
        cases[where] = Claim("", "θ = θ_3", 0, different, "elements", "derived", "compared")
    what = "elements on the host, and in the files, that differ from stage 3's after 3 steps of AdamW"
    return [fold(what, cases, key=True)]


def demo(world: World, micro_batches: int = 3) -> list[Claim]:
    """Fetches each block's parameters from the host or from files just ahead of use; the table shows what crosses.

    Args:
        micro_batches: A, the micro-batches of each rank in a step.
    """
    claims: list[Any] = [*crossings(world, micro_batches), held(world), *like_stage3(world)]
    for where in WHERE:
        with made(world, where) as model, world.timed(f"a step with parameters on the {where}"):
            small.step(world, model)
    return claims
