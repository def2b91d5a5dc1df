"""Solutions to the exercises of 11b_pipeline_parallel.ipynb, and to each a mistake that
its check knows.

A part goes in place of the stub. After the word mistake stands what the check says
about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def chunks_for(layers, ranks, microbatches, most):
    for chunks in range(1, layers // ranks + 1):
        bubble = Fraction(ranks - 1, chunks * microbatches + ranks - 1)
        if bubble <= most and layers % (chunks * ranks) == 0:
            return chunks


# %% exercise-1: mistake: 24 layers cannot be cut into 20 equal stages


def chunks_for(layers, ranks, microbatches, most):
    chunks = 1
    while Fraction(ranks - 1, chunks * microbatches + ranks - 1) > most:
        chunks += 1
    return chunks


# %% exercise-2: solution


def with_weights(row, rank):
    found, done, made = [], 0, 0
    for text in row:
        found.append(text)
        if text[0] == "I":
            done += 1
            if done > rank:  # rank r owes r of them
                found.append(f"W{made}")
                made += 1
    return found + [f"W{number}" for number in range(made, done)]


# %% exercise-2: mistake: a W right after its I


def with_weights(row, rank):
    found = []
    for text in row:
        found.append(text)
        if text[0] == "I":
            found.append(f"W{text[1:]}")
    return found


# %% exercise-3: solution


def order(rank, ranks, microbatches, chunks):
    forwards, backwards = [], []
    for begin in range(0, microbatches, ranks):
        group = range(begin, begin + ranks)
        for chunk in range(chunks):
            forwards += [f"{chunk * ranks + rank}F{number}" for number in group]
        for chunk in reversed(range(chunks)):
            backwards += [f"{chunk * ranks + rank}B{number}" for number in group]
    # The first backward belongs to the last chunk; a rank further from the end waits
    # for a message there and one back.
    warmup = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks, len(forwards))
    row = forwards[:warmup]
    for pair in zip(forwards[warmup:], backwards, strict=False):
        row += pair
    return row + backwards[len(forwards) - warmup :]


# %% exercise-3: mistake: it needs two more forwards than the next rank


def order(rank, ranks, microbatches, chunks):
    forwards, backwards = [], []
    for begin in range(0, microbatches, ranks):
        group = range(begin, begin + ranks)
        for chunk in range(chunks):
            forwards += [f"{chunk * ranks + rank}F{number}" for number in group]
        for chunk in reversed(range(chunks)):
            backwards += [f"{chunk * ranks + rank}B{number}" for number in group]
    warmup = min(ranks - 1 - rank + (chunks - 1) * ranks, len(forwards))
    row = forwards[:warmup]
    for pair in zip(forwards[warmup:], backwards, strict=False):
        row += pair
    return row + backwards[len(forwards) - warmup :]
