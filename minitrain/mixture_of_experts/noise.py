"""Random numbers that belong to a token, whichever rank holds it and whichever tokens it holds besides.

**Idea.** A router that adds noise must give a token the same noise in every layout of ranks, or a layout would change
the result. So nothing is drawn one after another: each number is a hash of its place, that is of seed, step, layer, the
token's number among all tokens of the step, and a column.

**Source.** Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", for random numbers made from a counter.
The hash is a mixer of 32 bits with two multiplications, of the kind of MurmurHash3's last step.

**What each rank holds.** No state of ours. `at` puts the place into torch's default generator, as its seed, because
that is what recomputation puts back: **a micro-batch that is computed again after the next has begun must be routed as
it was**, or its gradients belong to experts that it never saw.

**What is sent, when and why.** Nothing: ranks that hash the same words have the same numbers.

**Cost.** A dozen integer operations a number.

**Also called.** Counter-based or stateless random numbers: `tf.random.stateless_uniform`, JAX's keys, Philox in cuRAND.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

_TAG, _KEY_BITS, _TOKEN_BITS = 0x4D6, 24, 28  # 63 bits together: a seed that torch takes, and that we know again
_MASK = 0xFFFFFFFF


class Place(NamedTuple):
    """Where in training noise is drawn.

    Attributes:
        key: A number made of seed and step.
        first_token: The number, among all tokens of the step, of the first token that this rank now works on.
    """

    key: int
    first_token: int


def at(seed: int, step: int, first_token: int = 0) -> None:
    """Go to a place in training: to be called before each forward.

    It seeds torch's generators, all of them, as `torch.manual_seed` does. What is drawn from these afterwards differs
    between ranks that hold different tokens.

    Args:
        seed: Any integer, the same on all ranks.
        step: The training step.
        first_token: The number of this micro-batch's first token among all tokens of the step, on all ranks and in all
            micro-batches. Its others follow without a gap.

    Raises:
        ValueError: `first_token` is negative or too large.
    """
    if not 0 <= first_token < 1 << _TOKEN_BITS:
        raise ValueError(f"first_token={first_token} must be at least 0 and below {1 << _TOKEN_BITS}")
    key = _hash(f"{seed}/{step}")[0] >> (32 - _KEY_BITS)
    torch.manual_seed((_TAG << _KEY_BITS | key) << _TOKEN_BITS | first_token)


def place() -> Place:
    """Where `at` went.

    Raises:
        RuntimeError: `at` has not been called, or torch's generator has got another seed since.
    """
    rest, first_token = divmod(torch.initial_seed(), 1 << _TOKEN_BITS)
    tag, key = divmod(rest, 1 << _KEY_BITS)
    if tag != _TAG:
        raise RuntimeError(
            "a router cannot draw noise before at(seed, step, first_token), or after torch.manual_seed has replaced "
            "that place; call router.at last before each forward, or router.eval() for no noise"
        )
    return Place(key, first_token)


def token_noise(words: str, tokens: Int[Tensor, " tokens"], columns: int) -> Float[Tensor, "tokens columns"]:
    """Numbers between 0 and 1, evenly distributed, each a function of `words`, its token's number and its column alone.

    Args:
        words: What else the numbers depend on; different words give unrelated numbers.
        tokens: Numbers of tokens, at least 0.
        columns: Numbers for each token.

    Returns:
        float64, neither 0 nor 1.
    """
    first, second = _hash(words)
    row = _mix(tokens.long() + first & _MASK)
    column = torch.arange(columns, device=tokens.device) * 0x9E3779B9  # 2³² over the golden ratio: far apart
    return (_mix(row[:, None] + column + second & _MASK).double() + 0.5) / 2**32


def normal(uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Turn numbers between 0 and 1 into normally distributed ones, of mean 0 and deviation 1."""
    return torch.special.ndtri(uniform)


def _hash(words: str) -> tuple[int, int]:
    """Two numbers of 32 bits, the same on every machine."""
    digest = hashlib.sha256(words.encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def _mix(x: Tensor) -> Tensor:
    """A bijection of numbers of 32 bits that changes half of all bits when one changes."""
    # Held in 64 bits. Both factors are below 2³¹, so that no product overflows.
    x = (x ^ x >> 16) * 0x21F0AAAD & _MASK
    x = (x ^ x >> 15) * 0x735A2D97 & _MASK
    return x ^ x >> 15
