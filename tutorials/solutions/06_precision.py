"""Solutions to the exercises of 06_precision.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def rounded(x, exponent, mantissa):
    bias = 2 ** (exponent - 1) - 1
    # Subnormal numbers keep the smallest normal numbers' spacing.
    power = max(math.frexp(x)[1] - 1, 1 - bias)
    spacing = 2.0 ** (power - mantissa)
    nearest = round(x / spacing) * spacing
    if abs(nearest) > (2 - 2.0**-mantissa) * 2.0**bias:
        return math.copysign(math.inf, x)
    return nearest


# %% exercise-1: mistake: below the smallest normal number, the spacing no longer
# shrinks


def rounded(x, exponent, mantissa):
    bias = 2 ** (exponent - 1) - 1
    spacing = 2.0 ** (math.frexp(x)[1] - 1 - mantissa)
    nearest = round(x / spacing) * spacing
    if abs(nearest) > (2 - 2.0**-mantissa) * 2.0**bias:
        return math.copysign(math.inf, x)
    return nearest


# %% exercise-2: solution


def total(x):
    while len(x) > 1:
        if len(x) % 2:
            x = torch.cat([x, x.new_zeros(1)])
        # In pairs: all partial sums of a round have similar sizes.
        x = x[0::2] + x[1::2]
    return x[0]


# %% exercise-2: mistake: is a sum much larger than its next term


def total(x):
    parts = []
    for block in x.split(1000):  # ten blocks, each of which stops at 256
        part = torch.zeros((), dtype=x.dtype)
        for value in block:
            part = part + value
        parts.append(part)
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


# %% exercise-3: solution


class MyLossScale:
    def __init__(self, scale=2.0**16, every=5):
        self.scale, self.every = scale, every
        self.clean, self.overflow = 0, False

    def unscale(self, gradients):
        found = torch.zeros(1, device=gradients[0].device)
        for gradient in gradients:
            gradient /= self.scale
            if not gradient.isfinite().all():
                found[0] = 1
        # One for all.
        self.overflow = bool(all_reduce(found, op=dist.ReduceOp.MAX).wait())
        return not self.overflow

    def update(self):
        if self.overflow:
            self.scale, self.clean = max(self.scale / 2, 1.0), 0
            return
        self.clean += 1
        if self.clean == self.every:
            self.scale, self.clean = 2 * self.scale, 0


# %% exercise-3: mistake: a rank went on though it or another had infinity


class MyLossScale:
    def __init__(self, scale=2.0**16, every=5):
        self.scale, self.every = scale, every
        self.clean, self.overflow = 0, False

    def unscale(self, gradients):
        self.overflow = False
        for gradient in gradients:
            gradient /= self.scale
            # And nobody else hears of it.
            self.overflow |= not gradient.isfinite().all()
        return not self.overflow

    def update(self):
        if self.overflow:
            self.scale, self.clean = max(self.scale / 2, 1.0), 0
            return
        self.clean += 1
        if self.clean == self.every:
            self.scale, self.clean = 2 * self.scale, 0
