"""Solutions to the exercises of 07a_optimizers.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def adamw(theta, g, m, v, t, lr=0.1, beta_1=0.9, beta_2=0.999, eps=1e-8, decay=0.1):
    m.mul_(beta_1).add_((1 - beta_1) * g)
    v.mul_(beta_2).add_((1 - beta_2) * g**2)
    # The factors of t gradients add up to 1 - beta**t, not to 1.
    m_hat = m / (1 - beta_1**t)
    v_hat = v / (1 - beta_2**t)
    theta.mul_(1 - lr * decay).sub_(lr * m_hat / (v_hat.sqrt() + eps))


# %% exercise-1: mistake: what does decay multiply?


def adamw(theta, g, m, v, t, lr=0.1, beta_1=0.9, beta_2=0.999, eps=1e-8, decay=0.1):
    g = g + decay * theta
    m.mul_(beta_1).add_((1 - beta_1) * g)
    v.mul_(beta_2).add_((1 - beta_2) * g**2)
    m_hat = m / (1 - beta_1**t)
    v_hat = v / (1 - beta_2**t)
    theta.sub_(lr * m_hat / (v_hat.sqrt() + eps))


# %% exercise-2: solution


def gradient_that_fools():
    g = torch.ones(4, 4)
    # Nothing else is in the corner's row and column, and the sum of R is 1 + 9.
    g[0, 1:] = g[1:, 0] = 0
    return g


# %% exercise-2: mistake: without entering the corner's own row and column


def gradient_that_fools():
    return torch.eye(4)


# %% exercise-3: solution


def my_estimate(squares):
    R = squares.sum(1)
    C = all_reduce(squares.sum(0)).wait()  # over all rows of the matrix
    return torch.outer(R, C) / C.sum()  # which is the sum of R over all ranks, too


# %% exercise-3: mistake: which sum belongs to


def my_estimate(squares):
    R = squares.sum(1)
    C = all_reduce(squares.sum(0)).wait()
    return torch.outer(R, C) / R.sum()
