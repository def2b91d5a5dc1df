"""The lesson of `minitrain.zero.parameter_offload`: bytes that cross, what is fetched ahead, and equal bits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.memory import optimizer_states
from minitrain.costs import parameter_offload as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.zero import small
from minitrain.lessons.zero.crossings import Crossings
from minitrain.zero import parameter_offload as technique
from minitrain.zero import stage3


def demo(world: World) -> list[Claim]:
    """Fetches each block's parameters from the host or from files just ahead of use; the table shows what crosses."""
    micro_batches = 3
    rows = Rows("Rajbhandari et al. 2021, §6.1 and §6.2")
    step, lines = f"in a step of A = {micro_batches} micro-batches, and of one", small.lines()
    for where, many in (("host", micro_batches), ("disk", 1)):
        case = f"{where}, A = {many}"
        with TemporaryDirectory() as folder:
            model = small.wrap(world, technique.ParameterOffload, folder=folder if where == "disk" else "")
            small.step(world, model)
            diary = Diary(model)
            with Crossings([*small.shards_of(model), *optimizer_states(model.optimizer)]) as found:
                small.step(world, model, micro_batches=many)
        arriving, leaving = costs.crossing(lines, world.size, many)
        what = f"bytes of parameters that come to the device {step}, host and disk"
        rows.add(what, "2A · wΨ/n", arriving, found.back, case=case)
        what = f"bytes of gradients that leave the device {step}, host and disk"
        rows.add(what, "A · wΨ/n", leaving, found.out, case=case)
        what = "most bytes of whole parameters on the device, host and disk"
        most = costs.whole_at_once(lines, world.size)
        rows.add(what, "max over k of Ψₖ + Ψₖ₊₁", most, diary.most, case=case)
        what, ahead = f"fetches that begin while another block runs, {step}", costs.fetched_ahead(small.LAYERS, many)
        rows.add(what, "2A(L − 1)", ahead, diary.ahead, "1", case=case)
    if world.device.type == "cpu":  # a GPU and the CPU, which makes the step here, may round differently
        like_stage3(rows, world)
    return rows.claims()


def like_stage3(rows: Rows, world: World) -> None:
    """Claim that three steps leave stage 3's bits in the files: the same arithmetic elsewhere."""
    with TemporaryDirectory() as folder:
        right = small.wrap(world, stage3.Zero3)
        disk = small.wrap(world, technique.ParameterOffload, folder=folder)
        for number in range(3):
            for each in (right, disk):
                small.step(world, each, number, micro_batches=2)
        # Read as any program would, not through the memory into which they are mapped.
        files = [Path(folder, f"rank{world.rank}.block{number}").read_bytes() for number in range(small.LAYERS)]
    read = [torch.frombuffer(bytearray(file), dtype=torch.float32) for file in files]
    what = "elements in the files that differ from stage 3's after 3 steps of AdamW"
    rows.equal(what, read, small.shards_of(right), "θ = θ_3")


class Diary:
    """What happens to which block: "fetch" begins, or "free" ends its work; fetches are done at once, in this thread.

    `most` are the most bytes of whole parameters; `ahead` fetches began while another block was fetched and not freed.
    """

    def __init__(self, model: technique.ParameterOffload):
        self.events: list[tuple[str, int]] = []
        self.most = self.ahead = 0
        self._units, self._whole = model.units, set[int]()
        for number, unit in enumerate(model.units):
            unit.reader = SimpleNamespace(submit=partial(self._fetch, number))  # type: ignore[assignment]
            unit.reshard = partial(self._free, unit.reshard, number)  # type: ignore[method-assign]

    def _fetch(self, number: int, read: Callable[..., Tensor], shard: Tensor) -> Future[Tensor]:
        self.events.append(("fetch", number))
        self.ahead += bool(self._whole)
        self._whole.add(number)
        self.most = max(self.most, sum(unit.flat.untyped_storage().nbytes() for unit in self._units))
        future: Future[Tensor] = Future()
        future.set_result(read(shard))
        return future

    def _free(self, reshard: Callable[[], None], number: int) -> None:
        self.events.append(("free", number))
        self._whole.discard(number)
        reshard()
