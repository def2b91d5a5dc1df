"""Solutions to the exercises of 17a_craft.ipynb, and to each a mistake that its check
knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def threshold(steps, alarms):
    from statistics import NormalDist

    # A loss is above it with a probability of alarms / steps, on the high side alone.
    return -NormalDist().inv_cdf(alarms / steps)


# %% exercise-1: mistake: only losses above


def threshold(steps, alarms):
    from statistics import NormalDist

    return -NormalDist().inv_cdf(alarms / steps / 2)


# %% exercise-2: solution


def both_at_once(losses, sources, count):
    seq = losses.shape[1]
    # A label for each pair of a source and a position.
    labels = sources[:, None] * seq + torch.arange(seq)
    return mean_by(losses, labels, count * seq)[0].view(count, seq)


# %% exercise-2: mistake: but in 3 all-reduces


def both_at_once(losses, sources, count):
    seq = losses.shape[1]
    return torch.stack(
        [
            mean_by(losses[sources == each], torch.arange(seq), seq)[0]
            for each in range(count)
        ]
    )


# %% exercise-3: solution


class Patient:
    def __init__(self, window=32):
        self.spikes, self.row = Spikes(window), []

    def seen(self, loss):
        if not self.spikes.seen(loss):
            self.row = []
            return False
        self.row.append(loss)
        if len(self.row) < 5:
            return True
        # The new normal: what was usual before does not count any more.
        self.spikes.usual.clear()
        self.spikes.usual.extend(self.row)
        self.row = []
        return False


# %% exercise-3: mistake: 100 spikes after a shift


class Patient:
    def __init__(self, window=32):
        self.spikes = Spikes(window)

    def seen(self, loss):
        return self.spikes.seen(loss)
