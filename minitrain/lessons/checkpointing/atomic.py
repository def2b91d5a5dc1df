"""The lesson of `minitrain.checkpointing.atomic`: a save is ended at every moment."""

from __future__ import annotations

import hashlib
from functools import partial
from itertools import product
from pathlib import Path

from minitrain.checkpointing import atomic
from minitrain.comm import World
from minitrain.costs import checkpointing as costs
from minitrain.lessons.checkpointing.disk import FAILURES, outcomes
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.shared_folder import shared_folder

FILES = 3  # in a checkpoint, besides the manifest


def demo(world: World) -> list[Claim]:
    """Ends a save at every moment; the table shows that one checkpoint always loads."""
    rows, newest = Rows("derived"), partial(loaded, count=FILES)
    with shared_folder(world) as shared:
        folder = shared / str(world.rank)
        root = folder / "root"
        folder.mkdir()
        for keep, how in product((2, 1), FAILURES):  # with one, the old checkpoint is removed at the end

            def save(to: Path, step: int, keep: int = keep) -> None:
                atomic.save(to, step, content(step, FILES), keep)

            found = outcomes(root, save, newest, how)
            case, wrong = f"{how}, keep = {keep}", sum(step not in (0, 1) for step in found)
            what = "moments of a save at which a kill or a power failure leaves neither the old nor the new checkpoint"
            rows.add(what, "0", 0, wrong, "moments", "Pillai et al. 2014, §2", case=case, how="compared")
        found = outcomes(root, lambda to, step: in_place(to, step, content(step, FILES)), newest, "killed")
        lost = sum(step not in (0, 1) for step in found)
        what = "moments at which a kill leaves neither, where the only checkpoint is overwritten"
        rows.add(what, "4F + 2", costs.lost_in_place(FILES), lost, "moments", how="compared")
    return rows.claims()


def content(step: int, files: int) -> dict[str, bytes]:
    """Files whose bytes depend on the step, none empty and no two alike."""
    return {f"{number}.bin": bytes([step + 1, number]) * (number + 3) for number in range(files)}


def in_place(root: Path, step: int, files: dict[str, bytes]) -> None:
    """The obvious way: the only checkpoint is overwritten, also with a manifest at its end."""
    lines = "\n".join(f"{hashlib.sha256(data).hexdigest()} {len(data)} {name}" for name, data in files.items())
    manifest = f"{lines}\n{hashlib.sha256(lines.encode()).hexdigest()}".encode()
    folder = root / "step-00000000"
    folder.mkdir(exist_ok=True)
    for name, data in {**files, atomic.MANIFEST: manifest}.items():
        atomic.write(folder / name, data)


def loaded(root: Path, count: int) -> int | None:
    """The step of which all files are loaded; None if none can be, and -1 for a mixture."""
    try:
        found = atomic.load(root)[1]
    except FileNotFoundError:
        return None
    return next((step for step in range(4) if found == content(step, count)), -1)
