"""Solutions to the exercises of 20b_inference.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def in_order(lengths):
    # A long text that enters late would be alone at the end.
    return sorted(lengths, reverse=True)


# %% exercise-1: mistake: wait at the end


def in_order(lengths):
    return sorted(lengths)


# %% exercise-2: solution


def bytes_of_rank(layers, kv_heads, head, tokens, batch, item, ranks):
    return 2 * layers * max(1, kv_heads // ranks) * head * tokens * batch * item


# %% exercise-2: mistake: a rank has at least one head


def bytes_of_rank(layers, kv_heads, head, tokens, batch, item, ranks):
    return 2 * layers * kv_heads * head * tokens * batch * item // ranks


# %% exercise-3: solution


class Pages:
    def __init__(self):
        self.pool = torch.zeros(24, 4, 2, 8)
        self.free, self.blocks = list(range(24)), {}
        self.users = [0] * 24  # texts that use each block

    def take(self):
        block = self.free.pop(0)
        self.users[block] = 1
        return block

    def append(self, name, position, key_value):
        table = self.blocks.setdefault(name, [])
        if position % 4 == 0:
            table.append(self.take())
        elif self.users[table[-1]] > 1:
            shared, table[-1] = table[-1], self.take()
            self.users[shared] -= 1
            self.pool[table[-1]] = self.pool[shared]
        self.pool[table[-1], position % 4] = key_value

    def gather(self, name, tokens):
        return self.pool[self.blocks[name]].flatten(0, 1)[:tokens]

    def fork(self, name, new):
        self.blocks[new] = list(self.blocks[name])
        for block in self.blocks[new]:
            self.users[block] += 1

    def end(self, name):
        for block in self.blocks.pop(name):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.free.append(block)


# %% exercise-3: mistake: what another text has written


class Pages:
    def __init__(self):
        self.pool = torch.zeros(24, 4, 2, 8)
        self.free, self.blocks = list(range(24)), {}
        self.users = [0] * 24  # texts that use each block

    def take(self):
        block = self.free.pop(0)
        self.users[block] = 1
        return block

    def append(self, name, position, key_value):
        table = self.blocks.setdefault(name, [])
        if position % 4 == 0:
            table.append(self.take())
        self.pool[table[-1], position % 4] = key_value

    def gather(self, name, tokens):
        return self.pool[self.blocks[name]].flatten(0, 1)[:tokens]

    def fork(self, name, new):
        self.blocks[new] = list(self.blocks[name])
        for block in self.blocks[new]:
            self.users[block] += 1

    def end(self, name):
        for block in self.blocks.pop(name):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.free.append(block)
