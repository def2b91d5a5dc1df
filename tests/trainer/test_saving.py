"""Saving behind the training's back and into shared memory: the same states, one writer, and what failures leave."""

from __future__ import annotations

import resource
import shutil
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch

from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.full import manifest, memory
from minitrain.checkpointing.full.background import Background
from minitrain.checkpointing.full.memory import Memory
from minitrain.checkpointing.full.shards import Shard, ShardedTensor
from minitrain.comm.control import gather_objects
from minitrain.composition.settings import Layout
from minitrain.train import train
from minitrain.trainer.trainer import Trainer
from tests.drawn import first, part
from tests.trainer.test_trainer import asked, do


@contextmanager
def small_files(wanted: bool):
    """If asked, this process can write no more than a KiB into a file: as good as a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if wanted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


LAYOUTS = [Layout(dp=2, zero=1), Layout(tp=2), Layout(pp=2, microbatches=2)]


def resumed(settings, **changes):
    return replace(settings, run=replace(settings.run, resume=True, **changes))


@pytest.fixture
def shared(tmp_path):
    """Frees what this test's run, in any layout, has left in shared memory."""
    yield memory.place(tmp_path / "run")
    shutil.rmtree(memory.place(tmp_path / "run"), ignore_errors=True)


# ---- --async-save ----


@pytest.mark.parametrize("layout", first(LAYOUTS), ids=str)
def test_a_thread_writes_what_the_training_would_write(ranks, tmp_path, layout):
    both = {}
    for name in ("itself", "behind"):
        settings = asked(tmp_path, layout, name, save_every=1, keep=9, async_save=name == "behind")
        found = ranks(2).run(do, settings)
        assert [(status, done) for status, *_, done in found] == [(0, 4)] * 2
        # The same bytes in every file of tensors; the settings differ by the name and by the option.
        files = [manifest.read(tmp_path / name / "checkpoints" / f"step-{step:08d}").files for step in range(1, 5)]
        both[name] = found[0][1], [[s for n, s in each.items() if n != ".metadata"] for each in files]
    assert both["itself"] == both["behind"]


def tensors(world):
    """Two elements for each rank, and one tensor that rank 0 writes for all."""
    mine = torch.tensor([1.0, 2.0]) + 10 * world.rank
    parts = ShardedTensor((2 * world.size,), mine.dtype, [Shard(mine, (2 * world.rank,))])
    same = ShardedTensor((3,), mine.dtype, [Shard(torch.ones(3), (0,))], writes=world.rank == 0)
    return {"parts": parts, "same": same}


def change_at_once(world, folder):
    state, saver = tensors(world), Background()
    threads, most, lock = [], [], threading.Lock()
    real = checkpoint.save

    def slow(*arguments):
        assert lock.acquire(blocking=False), "a second writer"
        time.sleep(0.05)
        path = real(*arguments)
        most.append(sum(copy.nbytes for copy in saver.copies.values()))
        lock.release()
        threads.append(threading.get_ident())
        return path

    checkpoint.save = slow
    try:
        for step in (1, 2, 3):
            for sharded in state.values():
                for shard in sharded.shards:
                    shard.tensor.add_(100)
            saver.save(folder, step, state, {"step": step}, 9)
            # The training sends its own messages meanwhile, to the same ranks.
            assert gather_objects(step) == [step] * world.size
    finally:
        assert saver.wait() == folder / "step-00000003" and saver.wait() is None
        checkpoint.save = real
        saver.close()
    assert len(set(threads)) == 1 and threads[0] != threading.get_ident()
    # One copy, and none of what another rank writes.
    assert set(most) == {8 + (12 if world.rank == 0 else 0)}
    for step in (1, 2, 3):
        found = tensors(world)
        checkpoint.load(folder / f"step-{step:08d}", found)
        for name, right in tensors(world).items():
            assert torch.equal(found[name].shards[0].tensor, right.shards[0].tensor + 100 * step)
    return True


@pytest.mark.parametrize("size", (1, 3))
def test_one_writer_one_copy_and_values_of_the_moment(ranks, tmp_path, size):
    assert all(ranks(size).run(change_at_once, tmp_path))


def full_disk(world, folder):
    saver = Background()
    saver.save(folder, 1, tensors(world), {}, 9)
    assert saver.wait() == folder / "step-00000001"
    large = ShardedTensor((4000,), torch.float32, [Shard(torch.zeros(4000), (0,))], writes=world.rank == 0)
    with warnings.catch_warnings(record=True) as told, small_files(world.rank == 0):
        warnings.simplefilter("always")
        saver.save(folder, 2, {**tensors(world), "large": large}, {}, 9)
        assert saver.wait() is None
    saver.save(folder, 3, tensors(world), {}, 9)
    assert saver.wait() == folder / "step-00000003"
    saver.close()
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000001", "step-00000003"]
    return [str(each.message) for each in told]


def test_a_full_disk_is_told_and_the_next_save_works(ranks, tmp_path):
    told = ranks(2).run(full_disk, tmp_path)
    assert any("could not be saved" in text and "File too large" in text for text in told[0]) and not told[1]


# ---- --flash-every ----


class Killed(Exception):
    """What happens to a rank in these tests."""


def killed(world, settings, after):
    """A run whose ranks end after so many steps, and save nothing more: what it tells."""
    told = []
    trainer = Trainer(world, settings, tell=told.append)
    goes_on = trainer.log_evaluate_save

    def then(report):
        goes_on(report)
        if trainer.done == after:
            trainer.saving.wait()
            raise Killed

    trainer.log_evaluate_save = then
    with pytest.raises(Killed):
        train(trainer)
    return "\n".join(map(str, told))


@pytest.mark.parametrize("layout", part(first(LAYOUTS), 2, "layouts that save"), ids=str)
@pytest.mark.parametrize("dtype", ("float64", "float16"))
def test_a_replacement_reads_memory(ranks, tmp_path, shared, layout, dtype):
    settings = asked(tmp_path, layout, save_every=2, flash_every=1, dtype=dtype, steps=6)
    whole = ranks(2).run(do, replace(settings, run=replace(settings.run, name="whole", flash_every=0)))[0]
    ranks(2).run(killed, settings, 3)
    assert shared.is_dir()
    status, losses, state, told, _ = ranks(2).run(do, resumed(settings))[0]
    assert status == 0 and "going on from step 3 in shared memory" in told
    assert losses == whole[1][3:] and all(torch.equal(state[name], value) for name, value in whole[2].items())
    assert not shared.exists(), "freed at the end"


def test_the_disk_where_it_is_newer_or_the_layout_is_another(ranks, tmp_path, shared):
    settings = asked(tmp_path, Layout(dp=2), save_every=2, flash_every=1)
    ranks(2).run(killed, settings, 2)
    told = ranks(2).run(killed, resumed(settings), 3)[0]
    assert "going on from" in told and "step-00000002" in told
    other = replace(resumed(settings), layout=Layout(dp=2, zero=1))
    _, losses, _, told, _ = ranks(2).run(do, other)[0]
    assert "step-00000002" in told and len(losses) == 2 and not shared.exists()


def test_a_new_run_frees_what_a_dead_one_left(ranks, tmp_path, shared):
    settings = asked(tmp_path, Layout(dp=2), flash_every=1)
    ranks(2).run(killed, settings, 2)
    again = replace(settings, run=replace(settings.run, overwrite=True))
    _, losses, _, told, _ = ranks(2).run(do, again)[0]
    assert len(losses) == 4 and "shared memory" not in told
    ranks(2).run(killed, again, 2)
    ranks(2).run(do, replace(again, run=replace(again.run, flash_every=0)))
    assert not shared.exists(), "also by a run that saves nothing in memory"


def test_the_memory_of_a_training_whose_folder_is_gone_is_freed(tmp_path):
    dead, alive = (memory.place(tmp_path / name, tmp_path) for name in ("dead", "alive"))
    (tmp_path / "alive").mkdir()
    for path, name in ((dead, "dead"), (alive, "alive")):
        path.mkdir(mode=0o700)
        (path / memory.OWNER).write_text(str(tmp_path / name))
    assert memory.free_left(tmp_path) == [tmp_path / "dead"]
    assert alive.is_dir() and not dead.exists()


def strange(path, how, target):
    """A folder in memory of the same name, as another user could have made it before us."""
    if how == "a link":
        path.symlink_to(target, target_is_directory=True)
        return "is no folder"
    path.mkdir(mode=0o700)
    if how == "a link in it":
        (path / memory.OWNER).symlink_to(target / "precious")
        return "has links in it (owner)"
    path.chmod(0o1777)
    return "is open to other users (mode 1777)"


def of_another(world, root, how):
    path, told = memory.place(root / "run", root), ""
    if world.rank == 0:
        (root / "target").mkdir()
        (root / "target" / "precious").write_text("precious")
        told = strange(path, how, root / "target")
    told = gather_objects(told)[0]
    with mock.patch.object(memory, "place", lambda *given: path):
        with pytest.raises(OSError) as error:
            Memory(root / "run", tensors(world), {}, root)
        assert memory.free_left(root) == [], "it is not ours"
    assert told in str(error.value) and "have it removed, or leave out --flash-every" in str(error.value)
    assert (root / "target" / "precious").read_text() == "precious"
    return sorted(file.name for file in (root / "target").iterdir()) == ["precious"]


@pytest.mark.parametrize("how", ("a link", "a link in it", "open"))
def test_a_folder_in_memory_that_another_user_could_have_made_is_refused(ranks, tmp_path, how):
    assert all(ranks(2).run(of_another, tmp_path, how))


def packed(world, folder):
    """Shards of several dtypes, sizes that no alignment divides, and an empty one."""

    def state(factor):
        kinds = [(torch.float32, 3 + world.rank), (torch.bfloat16, 5), (torch.int64, 1), (torch.float64, 0)]
        return {
            str(dtype): ShardedTensor((9,), dtype, [Shard((torch.arange(n) * factor + world.rank).to(dtype), (0,))])
            for dtype, n in kinds
        }

    kept = Memory(folder, state(0), {}, folder)
    kept.save(6, state(1), {"step": 6, "words": "nothing of a longer text is left by the next"})
    kept.save(7, state(3), {"step": 7, "words": "längere"})
    kept.wait()
    found, again = state(0), Memory(folder, state(0), {}, folder)
    assert again.find() == 7
    assert again.load(found) == {"step": 7, "words": "längere"}
    for name, right in state(3).items():
        assert torch.equal(found[name].shards[0].tensor, right.shards[0].tensor)
    assert Memory(folder, state(0), {"another": "layout"}, folder).find() == -1
    with pytest.raises(ValueError, match="there is room for"):
        again.save(8, state(3), {"long": "x" * 70_000})
    again.free()
    return not memory.place(folder, folder).exists()


@pytest.mark.parametrize("size", (1, 3))
def test_states_of_any_dtypes_and_sizes(ranks, tmp_path, size):
    assert all(ranks(size).run(packed, tmp_path))
