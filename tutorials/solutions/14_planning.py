"""Solutions to the exercises of 14_planning.ipynb, and to each a mistake that its check
knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def cut(seconds, p):
    n = len(seconds)
    # The first j layers in one stage.
    best = {j: (sum(seconds[:j]), [j]) for j in range(1, n + 1)}
    for stages in range(2, p + 1):
        best = {
            # The last stage has layers s to j − 1; those before it have a best cut into
            # one stage less.
            j: min(
                (max(best[s][0], sum(seconds[s:j])), [*best[s][1], j - s])
                for s in range(stages - 1, j)
            )
            for j in range(stages, n + 1)
        }
    return best[n][1]


# %% exercise-1: mistake: a stage that is filled up to the mean leaves too much for the
# last


def cut(seconds, p):
    counts, stage = [0], 0.0
    for number, each in enumerate(seconds):
        more = len(counts) < p and counts[-1]
        if more and (
            stage + each > sum(seconds) / p or len(seconds) - number == p - len(counts)
        ):
            counts.append(0)
            stage = 0.0
        counts[-1] += 1
        stage += each
    return counts


# %% exercise-2: solution


def bound(stages, m):
    # Before stage i begins, those before it have sent a micro-batch forward; after its
    # last backward they still have theirs to do.
    return max(sum(stages[:i]) + m * each for i, each in enumerate(stages))


# %% exercise-2: mistake: the slowest stage does not set the pace while others fill


def bound(stages, m):
    return (m + len(stages) - 1) * max(stages)


# %% exercise-3: solution


def one_number(own):
    return float(all_reduce(torch.tensor(own), op=dist.ReduceOp.MAX).wait())


# %% exercise-3: mistake: a sum, a mean or a minimum hides the rank that is late


def one_number(own):
    return float(all_reduce(torch.tensor(own)).wait()) / dist.get_world_size()


# %% exercise-4: solution


def ten_fastest(numbers, least, fits, seconds):
    best = []
    for n in sorted(numbers, key=least):
        if len(best) == 10 and least(n) > best[-1][0]:
            break  # bounds only grow from here on
        if fits(n):
            best = sorted([*best, (seconds(n), n)])[:10]
    return [n for _, n in best]


# %% exercise-4: mistake: the ten with the lowest bounds are not the ten fastest


def ten_fastest(numbers, least, fits, seconds):
    ten = [n for n in sorted(numbers, key=least) if fits(n)][:10]
    return sorted(ten, key=seconds)
