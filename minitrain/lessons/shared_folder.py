"""A folder that all ranks of a demo see."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minitrain.comm import World
from minitrain.comm.control import gather_objects


@contextmanager
def shared_folder(world: World) -> Iterator[Path]:
    """A new folder in the one in which the ranks work, removed when all are done.

    The working folder is shared where ranks are on several machines. The usual place, /tmp, is not.

    Raises:
        ValueError: On every rank alike: some ranks do not see the folder.
    """
    made = tempfile.mkdtemp(prefix=".minitrain-", dir=Path.cwd()) if world.rank == 0 else ""
    folder = Path(gather_objects(made)[0])  # rank 0 says where
    try:
        if blind := [rank for rank, sees in enumerate(gather_objects(folder.is_dir())) if not sees]:
            raise ValueError(
                f"{folder}, which rank 0 has made, does not exist on rank {','.join(map(str, blind))}; "
                "start all ranks in a folder that their machines share"
            )
        yield folder
        gather_objects(None)  # no rank reads any more
    finally:
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
