"""Solutions to the exercises of 15_checkpointing.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: E402, F811, F821

# %% exercise-1: solution


def worst_stages():
    # As many steps as possible on as few ranks as possible: each counts as if 8 ranks
    # had taken a sample.
    return [(1, 19), (8, 1)]


# %% exercise-1: mistake: do ranks leave?


def worst_stages():
    return [(8, 19), (1, 1)]


# %% exercise-2: solution

from minitrain.checkpointing.interval import daly


def longest_save(target, restart, mean):
    low, high = 0.0, mean
    for _ in range(60):
        middle = (low + high) / 2
        if costs.goodput(daly(middle, mean), middle, restart, mean) > target:
            low = middle
        else:
            high = middle
    return low


# %% exercise-2: mistake: of 92.9%

from minitrain.checkpointing.interval import daly


def longest_save(target, restart, mean):
    low, high = 0.0, mean
    for _ in range(60):
        middle = (low + high) / 2
        # A restart takes time, too.
        if costs.goodput(daly(middle, mean), middle, 0.0, mean) > target:
            low = middle
        else:
            high = middle
    return low


# %% exercise-3: solution


def my_save(disk, root, step, files):
    final, unfinished = root / f"step-{step:08d}", root / f"step-{step:08d}.unfinished"
    disk.mkdir(unfinished)
    for name, data in {**files, MANIFEST: manifest_of(files)}.items():
        disk.write(unfinished / name, data)
        disk.sync(unfinished / name)
    disk.sync(unfinished)  # the names of the files
    disk.rename(unfinished, final)
    # The name of the folder; without it, the old one may be removed and the new one
    # have no name.
    disk.sync(root)
    for old in root.iterdir():
        if old != final:
            disk.remove(old)


# %% exercise-3: mistake: sync each file before the rename


def my_save(disk, root, step, files):
    final, unfinished = root / f"step-{step:08d}", root / f"step-{step:08d}.unfinished"
    disk.mkdir(unfinished)
    for name, data in {**files, MANIFEST: manifest_of(files)}.items():
        disk.write(unfinished / name, data)
    disk.sync(unfinished)
    disk.rename(unfinished, final)
    disk.sync(root)
    for old in root.iterdir():
        if old != final:
            disk.remove(old)
