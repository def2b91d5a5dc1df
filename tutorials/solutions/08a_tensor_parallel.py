"""Solutions to the exercises of 08a_tensor_parallel.ipynb, and to each a mistake that
its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def gated(x, ac, b):
    my_a, my_c = (
        matrix.tensor_split(size, dim=1)[rank] for matrix in ac.chunk(2, dim=1)
    )
    my_b = b.tensor_split(size, dim=0)[rank]
    x = f(x)  # once, for both products
    return g(((x @ my_a).relu() * (x @ my_c)) @ my_b)


# %% exercise-1: mistake: cut A and C first, each by itself


def gated(x, ac, b):
    my_ac, my_b = ac.tensor_split(size, dim=1)[rank], b.tensor_split(size, dim=0)[rank]
    my_a, my_c = (f(x) @ my_ac).chunk(2, dim=1)
    return g((my_a.relu() * my_c) @ my_b)


# %% exercise-2: solution


def break_even(layers, hidden, ranks):
    # ZeRO: 3 · 12h² elements per layer. Tensor parallelism: four all-reduces of Th,
    # each sent twice. Both are multiplied by layers · (n−1)/n, which cancels: 36h² =
    # 8hT.
    return 36 * hidden // 8


# %% exercise-2: mistake: an all-reduce sends twice as much as an all-gather


def break_even(layers, hidden, ranks):
    return 36 * hidden // 4


# %% exercise-3: solution


def my_attention(x, wq, wk, wv, wo, bias):
    x = f(x)  # once, for three products
    # outputs: columns of the matrix.
    my_wq, my_wk, my_wv = (w.tensor_split(size, dim=0)[rank] for w in (wq, wk, wv))
    my_wo = wo.tensor_split(size, dim=1)[rank]  # inputs: its rows
    q, k, v = F.linear(x, my_wq), F.linear(x, my_wk), F.linear(x, my_wv)
    q, k, v = (each.unflatten(-1, (-1, HEAD)).transpose(1, 2) for each in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = y.transpose(1, 2).flatten(2)
    return g(F.linear(y, my_wo)) + bias


# %% exercise-3: mistake: the bias was added four times


def my_attention(x, wq, wk, wv, wo, bias):
    x = f(x)
    my_wq, my_wk, my_wv = (w.tensor_split(size, dim=0)[rank] for w in (wq, wk, wv))
    my_wo = wo.tensor_split(size, dim=1)[rank]
    q, k, v = F.linear(x, my_wq), F.linear(x, my_wk), F.linear(x, my_wv)
    q, k, v = (each.unflatten(-1, (-1, HEAD)).transpose(1, 2) for each in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = y.transpose(1, 2).flatten(2)
    return g(F.linear(y, my_wo, bias))
