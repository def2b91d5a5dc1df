"""Flash checkpoints: processes and nodes that die, several to a node, and memory that is not ours or is damaged."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.checkpointing.flash import Flash
from minitrain.comm.control import gather_objects

RUN = 5


def state(rank, step):
    return 100.0 * step + 10 * rank + torch.arange(7.0)


def nodes(world, folder, apart):
    """This rank's node, and its folder."""
    node = world.rank // apart
    (folder / str(node)).mkdir(exist_ok=True)
    return node, folder / str(node)


def node_dies(world, folder, apart, dead):
    node, mine = nodes(world, folder, apart)
    flash = Flash(mine, state(world.rank, 0), RUN, apart)
    for step in (1, 2, 3):
        flash.save(step, state(world.rank, step))
    if node == dead:
        flash.free()
    gather_objects(None)
    shard = torch.zeros(7)
    flash = Flash(mine, shard, RUN, apart)
    assert flash.load(shard) == 3
    assert torch.equal(shard, state(world.rank, 3))
    # It goes on from there, and the next failure may hit any other node.
    flash.save(4, shard + 100)
    if node == dead:
        flash.free()
    gather_objects(None)
    shard.zero_()
    Flash(mine, shard, RUN, apart).load(shard)
    assert torch.equal(shard, state(world.rank, 4))
    return True


@pytest.mark.parametrize(("size", "apart"), ((2, 1), (3, 1), (4, 1), (4, 2), (4, 3)))
def test_a_node_dies(ranks, tmp_path, size, apart):
    if apart == 3:  # nodes of 3 and 1 ranks: the second one's peers lie on the first, and only it may die
        assert all(ranks(size).run(node_dies, tmp_path, apart, 1))
        return
    for dead in range(size // apart):
        (tmp_path / str(dead)).mkdir()
        assert all(ranks(size).run(node_dies, tmp_path / str(dead), apart, dead))


class Dies(TorchDispatchMode):
    """Ends the process before one of its changes of memory in place, or in the midst of it."""

    def __init__(self, change, half):
        super().__init__()
        self.change, self.half = change, half

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "aten" and func.__name__.split(".")[0] in ("copy_", "fill_"):
            self.change -= 1
            if self.change < 0:
                if self.half and func is torch.ops.aten.copy_.default:
                    middle = args[0].numel() // 2
                    args[0].view(-1)[:middle] = args[1].view(-1)[:middle]
                raise KeyboardInterrupt  # no `Exception`, so that no cleaning up takes place, either
        return func(*args, **(kwargs or {}))


def ended_anywhere(world, folder):
    """Moments of a save of step 3 after which a wrong state is loaded, or one that is half of step 3."""
    lost = change = 0
    saved = False
    while not saved:
        for half in (False, True):
            mine = folder / f"{change} {half}"
            mine.mkdir()
            flash = Flash(mine, state(0, 0), RUN)
            for step in (1, 2):
                flash.save(step, state(0, step))
            try:
                with Dies(change, half):
                    flash.save(3, state(0, 3))
                saved = True
            except KeyboardInterrupt:
                pass
            shard = torch.zeros(7)
            again = Flash(mine, shard, RUN)
            step = again.load(shard)
            lost += step not in (2, 3) or not torch.equal(shard, state(0, step))
            again.slots[again.heads[:, 3] == 2] ^= 1  # without step 2: what was being written must not count
            later = Flash(mine, shard, RUN).load(shard)
            lost += later >= 0 and not torch.equal(shard, state(0, later))
        change += 1
    return lost, change


def test_a_save_may_end_at_any_moment(ranks, tmp_path):
    ((lost, changes),) = ranks(1).run(ended_anywhere, tmp_path)
    assert lost == 0 and changes > 5


def flipped(world, folder, copies):
    flash = Flash(folder, state(world.rank, 0), RUN)
    for step in (1, 2):
        flash.save(step, state(world.rank, step))
    newest = int(flash.heads[:, 3].argmax())
    if world.rank == 0:
        flash.slots[newest, 0, 3] ^= 1  # its own
    if copies and world.rank == 1 % world.size:
        flash.slots[newest, 1, 3] ^= 1  # and the copy that its peer has
    gather_objects(None)
    shard = torch.zeros(7)
    again = Flash(folder, shard, RUN)
    step = again.load(shard)
    assert torch.equal(shard, state(world.rank, step))
    assert int(again.heads[:, 3].max()) == step  # what is newer is given up by all
    return step


@pytest.mark.parametrize("size", (2, 3))
def test_a_flipped_byte_is_found_and_the_peers_copy_taken(ranks, tmp_path, size):
    assert ranks(size).run(flipped, tmp_path, False) == [2] * size


@pytest.mark.parametrize("size", (1, 2, 3))
def test_with_both_copies_damaged_all_take_the_step_before(ranks, tmp_path, size):
    assert ranks(size).run(flipped, tmp_path, True) == [1] * size


def stale(world, folder):
    Flash(folder, state(world.rank, 0), RUN).save(1, state(world.rank, 1))
    larger = torch.zeros(1000)
    flash = Flash(folder, larger, RUN)  # the same run, but a layout with other shards
    assert flash.load(larger) == -1
    flash.save(7, larger + 3)
    other = Flash(folder, larger, RUN + 1)
    assert other.load(larger) == -1
    other.free()
    return sorted(path.name for path in folder.glob(f"{world.rank}.*"))


@pytest.mark.parametrize("size", (1, 3))
def test_memory_of_another_training_or_layout_is_freed(ranks, tmp_path, size):
    assert ranks(size).run(stale, tmp_path) == [[]] * size


def taken(world, folder):
    flash = Flash(folder, torch.zeros(100_000), RUN)
    return flash.files[1].stat().st_blocks * 512 >= 4 * 400_000


def test_the_memory_is_taken_at_the_start(ranks, tmp_path):
    """And not when it is first written: if others have filled it by then, the write ends the process (SIGBUS)."""
    assert all(ranks(2).run(taken, tmp_path))
