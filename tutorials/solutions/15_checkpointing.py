"""Solutions to the exercises of 15_checkpointing.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def worst_stages():
    # As many steps as possible on as few ranks as possible: each counts as if 8 ranks
    # had taken a sample.
    return [(1, 19), (8, 1)]


# %% exercise-1: mistake: do ranks leave?


def worst_stages():
    return [(8, 19), (1, 1)]


# %% exercise-2: solution


def best_interval(saving, mean):
    # The goodput has one maximum, and beyond the mean it only falls. So cut off what
    # cannot contain it.
    low, high = 0.0, mean
    while high - low > 1e-6 * mean:
        third = (high - low) / 3
        if costs.goodput(low + third, saving, 0, mean) < costs.goodput(
            high - third, saving, 0, mean
        ):
            low += third
        else:
            high -= third
    return (low + high) / 2


# %% exercise-2: mistake: Young's less δ is too short


def best_interval(saving, mean):
    return (2 * saving * mean) ** 0.5 - saving


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
