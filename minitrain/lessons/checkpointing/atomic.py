"""The lesson of `minitrain.checkpointing.atomic`: a save is ended at every moment, and every byte is flipped."""

from __future__ import annotations

import hashlib
from pathlib import Path

from minitrain.checkpointing import atomic
from minitrain.comm import World
from minitrain.costs import checkpointing as costs
from minitrain.lessons.checkpointing.disk import FAILURES, Disk, on, outcomes
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.composition.common import shared_folder

POSIX = "POSIX, rename(), fsync()"
ALICE = "Pillai et al. 2014, §2"


def content(step: int, files: int) -> dict[str, bytes]:
    """Files whose bytes depend on the step, none empty and no two alike."""
    return {f"{number}.bin": bytes([step + 1, number]) * (number + 3) for number in range(files)}


def in_place(root: Path, files: dict[str, bytes]) -> None:
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


def ended(folder: Path, files: int) -> list[Claim]:
    """Claims on what is found after a save that was ended at any moment, in three ways, or overwrote the old one."""

    cases, new, moments = {}, {}, {}
    for keep in (2, 1):  # with one, the old checkpoint is removed at the end

        def save(root: Path, step: int, keep: int = keep) -> None:
            atomic.save(root, step, content(step, files), keep)

        for how in FAILURES:
            found = outcomes(folder / "root", save, lambda root: loaded(root, files), how)
            name = f"{how}, keep = {keep}"
            wrong = sum(step not in (0, 1) for step in found)
            cases[name] = Claim("", "0", 0, wrong, "moments", ALICE, "compared")
            if how == FAILURES[0]:
                operations = costs.atomic_operations(files, removed=2 - keep)
                # A removal can be half done, as a write can.
                halves = files + 1 + (2 - keep)
                moments[name] = Claim(
                    "", "operations + 1 + writes", costs.kill_points(operations, halves), len(found), "moments"
                )
                old = sum(step == 0 for step in found)
                # Before the rename: every operation up to it, and the writes.
                predicted = costs.renamed_after(files) + files + 1
                new[name] = Claim("", "3F + 6 + F + 1", predicted, old, "moments", POSIX, "compared")

    def overwrite(root: Path, step: int) -> None:
        in_place(root, content(step, files))

    place = outcomes(folder / "root", overwrite, lambda root: loaded(root, files), FAILURES[0])
    lost = sum(step is None for step in place)
    return [
        fold("moments of a save whose end leaves neither the old nor the new checkpoint, killed or without power",
             cases, key=True),
        Claim("the same where the only checkpoint is overwritten", "4F + 2", costs.lost_in_place(files), lost,
              "moments", "derived", "compared", key=True),
        fold("moments at which a save can end", moments),
        fold("moments whose end leaves the old checkpoint: all until the rename", new, key=True),
    ]  # fmt: skip


def named(path: Path) -> bool:
    """Whether damage is found; an error about something else does not name it."""
    try:
        return bool(atomic.damage(path))
    except ValueError:
        return False


def damaged(folder: Path, files: int) -> list[Claim]:
    """Claims on flipped bytes and shortened files, each one of them."""
    path = atomic.save(folder, 5, content(5, files))
    flips = cuts = total = 0
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        total += len(data)
        for place in range(len(data)):
            file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            flips += named(path)
            file.write_bytes(data[:place])
            cuts += named(path)
        file.write_bytes(data)
    sound = Claim("damage found where there is none", "0", 0, bool(atomic.damage(path)), source="derived")
    text = "of all bytes of a checkpoint, those whose flip, or cut off with what follows, is found"
    cases = {
        name: Claim("", "all", total, found, "bytes", "FIPS 180-4", "compared")
        for name, found in (("flipped", flips), ("cut off", cuts))
    }
    return [fold(text, cases, key=True), sound]


def cost(folder: Path, size: int, files: int) -> list[Claim]:
    """Claims on bytes written in a save, and on the disk at most."""
    data = {f"{number}.bin": bytes(size + number) for number in range(files)}
    whole = sum(map(len, data.values()))
    for step in range(3):
        with on(Disk(folder)) as disk:
            path = atomic.save(folder, step, data, keep=2)
        manifest = (path / atomic.MANIFEST).stat().st_size
    return [
        Claim("bytes that a save writes", "S + the manifest", whole + manifest, disk.bytes, "B", "derived"),
        Claim("most bytes on the disk while a third save runs, keep = 2", "(keep + 1)(S + the manifest)",
              3 * (whole + manifest), disk.most, "B", "derived"),
        Claim("operations of a save that removes one", "3F + 7 + 1", costs.atomic_operations(files, 1),
              len(disk.names), "operations", "derived", key=True),
    ]  # fmt: skip


def demo(world: World, files: int = 3, size: int = 5000) -> list[Claim]:
    """Ends a save at every moment and flips every byte; the table shows that one checkpoint always loads.

    Args:
        files: In a checkpoint, besides the manifest.
        size: Bytes of the smallest file where bytes are counted.
    """
    with shared_folder(world) as folder:
        own = {name: folder / f"{name}-{world.rank}" for name in ("ended", "damaged", "cost", "timed")}
        for path in own.values():
            path.mkdir()
        claims = [*ended(own["ended"], files), *damaged(own["damaged"], files), *cost(own["cost"], size, files)]
        with world.timed("a save of three files of 1 MB"):
            atomic.save(own["timed"], 0, {str(number): bytes(1_000_000) for number in range(3)})
        return claims
