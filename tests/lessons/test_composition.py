"""The folder that demos of several ranks share."""

from __future__ import annotations

from pathlib import Path

import pytest

from minitrain.lessons.shared_folder import shared_folder


def used(world, working):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(working)
        with shared_folder(world) as folder:
            (folder / f"{world.rank}").touch()
    return folder


def test_it_is_in_the_working_folder_and_is_removed(ranks, tmp_path):
    """Of several machines' folders that is the one that all share; a machine's /tmp is its own."""
    (folder,) = {*ranks(3).run(used, tmp_path)}
    assert folder.parent == tmp_path and not list(tmp_path.iterdir())


def not_seen(world, working):
    exists = Path.is_dir
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(working)
        patch.setattr(Path, "is_dir", lambda path: world.rank == 0 and exists(path))  # as on another machine
        with pytest.raises(ValueError) as error, shared_folder(world):
            pass
    return str(error.value)


def test_ranks_that_do_not_see_it_are_named(ranks, tmp_path):
    for said in ranks(3).run(not_seen, tmp_path):
        assert said.startswith(f"{tmp_path}/.minitrain-") and "does not exist on rank 1,2; start all ranks in" in said
    assert not list(tmp_path.iterdir())
