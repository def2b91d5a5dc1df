"""Solutions to the exercises of 18_parameter_server.ipynb, and to each a mistake that
its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def placement(sizes, servers):
    owners, loads = [0] * len(sizes), [0] * servers
    # The largest first.
    for tensor in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[tensor] = loads.index(min(loads))
        loads[owners[tensor]] += sizes[tensor]
    return owners


# %% exercise-1: mistake: a large one that comes late finds no room


def placement(sizes, servers):
    owners, loads = [], [0] * servers
    for size in sizes:  # in the order of the model
        owners.append(loads.index(min(loads)))
        loads[owners[-1]] += size
    return owners


# %% exercise-2: solution

# Worker 1 is one step ahead of the others, which is as much as it may be.
events = ["begin 1", "end 1", "begin 1"]
# Each of the others ends the step that it is behind, the same step as worker 1, and one
# ahead.
for _ in range(3):
    events += ["begin 2", "end 2", "begin 3", "end 3"]
events += ["end 1"]

# %% exercise-2: mistake: the others could not yet be behind it

events = [
    "begin 1",
    "begin 2",
    "end 2",
    "begin 3",
    "end 3",
    "begin 2",
    "end 2",
    "begin 3",
    "end 3",
    "end 1",
]

# %% exercise-3: solution


def learning_rate(delay):
    z = delay / (delay + 1)  # where the derivative of z^delay · (1 − z) is 0
    return z**delay * (1 - z)


# %% exercise-3: mistake: larger gets closer


def learning_rate(delay):
    return 1 / (delay + 1) ** 4


# %% exercise-4: solution


def serve(desk, weights, workers, steps, s):
    finished, idle = dict.fromkeys(workers, 0), set(workers)
    while min(finished.values()) < steps:
        for worker in sorted(idle):
            lead = finished[worker] - min(finished.values())
            if lead <= s and finished[worker] < steps:
                desk.answer(worker, weights)
                idle.remove(worker)
        worker, gradient = desk.next_push()
        weights = weights - RATE * gradient
        finished[worker] += 1
        idle.add(worker)  # and perhaps the bound now allows others to begin, too
    return weights


# %% exercise-4: mistake: no worker is computing


def serve(desk, weights, workers, steps, s):
    finished = dict.fromkeys(workers, 0)
    for worker in workers:
        desk.answer(worker, weights)
    while min(finished.values()) < steps:
        worker, gradient = desk.next_push()
        weights = weights - RATE * gradient
        finished[worker] += 1
        if finished[worker] < steps and finished[worker] - min(finished.values()) <= s:
            # Those that were held back before are forgotten.
            desk.answer(worker, weights)
    return weights
