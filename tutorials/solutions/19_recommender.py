"""Solutions to the exercises of 19_recommender.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def sparse_push(ids, gradients):
    unique, inverse = torch.unique(ids, return_inverse=True)
    sums = torch.zeros(len(unique), gradients.shape[1])
    return unique, sums.index_add_(0, inverse, gradients)  # adds for every occurrence


# %% exercise-1: mistake: only one gradient is left


def sparse_push(ids, gradients):
    unique, inverse = torch.unique(ids, return_inverse=True)
    sums = torch.zeros(len(unique), gradients.shape[1])
    # Reads once, adds, and writes: of several, the last one wins.
    sums[inverse] += gradients
    return unique, sums


# %% exercise-2: solution


def my_auc(scores, labels):
    clicks, others = scores[labels == 1][:, None], scores[labels == 0]
    right = (clicks > others).double() + (
        clicks == others
    ).double() / 2  # [clicks, others]
    return right.mean().item()


# %% exercise-2: mistake: equal scores count one half


def my_auc(scores, labels):
    clicks, others = scores[labels == 1][:, None], scores[labels == 0]
    return (clicks > others).double().mean().item()


# %% exercise-3: solution


class MyTable:
    def __init__(self, dimension, lr):
        self.rows, self.lr, self.dimension = {}, lr, dimension

    def lookup(self, ids):
        unique, self.inverse = ids.unique(return_inverse=True)
        homes = owner(unique, size)
        # Where the ids of each owner are in `unique`
        self.at = [(homes == r).nonzero().flatten() for r in range(size)]
        self.wanted = swap([unique[at] for at in self.at])  # ids go to their owners
        for key in torch.cat(self.wanted).tolist():
            self.rows.setdefault(key, first_rows(torch.tensor([key]))[0])
        kept = [[self.rows[key] for key in keys.tolist()] for keys in self.wanted]
        # Rows come back.
        found = swap(
            [
                torch.stack(rows) if rows else torch.empty(0, self.dimension)
                for rows in kept
            ]
        )
        rows = torch.empty(len(unique), self.dimension)
        rows[torch.cat(self.at)] = torch.cat(found)
        return rows[self.inverse]

    def push(self, gradients):
        count = sum(map(len, self.at))
        sums = torch.zeros(count, self.dimension).index_add_(0, self.inverse, gradients)
        # Gradients go to the owners, who still know the ids.
        came = swap([sums[at] for at in self.at])
        for keys, of_rank in zip(self.wanted, came, strict=True):
            for key, gradient in zip(keys.tolist(), of_rank, strict=True):
                self.rows[key] = self.rows[key] - self.lr * gradient / size


# %% exercise-3: mistake: divide the sum by the number of ranks


class MyTable:
    def __init__(self, dimension, lr):
        self.rows, self.lr, self.dimension = {}, lr, dimension

    def lookup(self, ids):
        unique, self.inverse = ids.unique(return_inverse=True)
        homes = owner(unique, size)
        self.at = [(homes == r).nonzero().flatten() for r in range(size)]
        self.wanted = swap([unique[at] for at in self.at])
        for key in torch.cat(self.wanted).tolist():
            self.rows.setdefault(key, first_rows(torch.tensor([key]))[0])
        kept = [[self.rows[key] for key in keys.tolist()] for keys in self.wanted]
        found = swap(
            [
                torch.stack(rows) if rows else torch.empty(0, self.dimension)
                for rows in kept
            ]
        )
        rows = torch.empty(len(unique), self.dimension)
        rows[torch.cat(self.at)] = torch.cat(found)
        return rows[self.inverse]

    def push(self, gradients):
        count = sum(map(len, self.at))
        sums = torch.zeros(count, self.dimension).index_add_(0, self.inverse, gradients)
        came = swap([sums[at] for at in self.at])
        for keys, of_rank in zip(self.wanted, came, strict=True):
            for key, gradient in zip(keys.tolist(), of_rank, strict=True):
                self.rows[key] = self.rows[key] - self.lr * gradient
