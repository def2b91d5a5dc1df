"""Random numbers that belong to a position in training, whichever rank draws them and whatever else it draws.

**Idea.** A layout of ranks must not change what is trained. So a router's noise and a dropout's masks are not drawn one
after another: each number is a hash of its position, that is, of seed, step, layer, the token's number among all tokens
of the step, and a column. Any rank that holds the token computes the same number.

**Source.** Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", for random numbers made from a counter.
The hash is a mixer of 32 bits with two multiplications, of the kind of MurmurHash3's last step.
**Cost.** A dozen integer operations per number, and 16 bytes per number while it is made.
Also called counter-based or stateless random numbers: `tf.random.stateless_uniform`, JAX's keys, Philox in cuRAND.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

_TAG, _KEY_BITS, _TOKEN_BITS = 0x4D6, 24, 28  # 63 bits together: a seed that torch takes, and that we know again
_MASK = 0xFFFFFFFF


class Position(NamedTuple):
    """The position in training at which numbers are drawn.

    Attributes:
        key: A number made from seed and step.
        first_token: The number, among all tokens of the step, of the first token that this rank now works on.
    """

    key: int
    first_token: int


def set_position(seed: int, step: int, first_token: int = 0) -> None:
    """Set the position in training; call it before each forward.

    It seeds torch's generators, all of them, as `torch.manual_seed` does. What is drawn from these afterwards differs
    between ranks that hold different tokens. The position is the generator's seed because recomputation restores that:
    **a micro-batch that is computed again after the next one has begun must see its own numbers**, or its gradients
    belong to experts, or to masks, that its forward never saw.

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


@torch.compiler.disable  # the position changes with each forward, and a compiled graph would keep the first
def position() -> Position:
    """The position that `set_position` set last.

    Raises:
        RuntimeError: `set_position` has not been called, or torch's generator has got another seed since.
    """
    rest, first_token = divmod(torch.initial_seed(), 1 << _TOKEN_BITS)
    tag, key = divmod(rest, 1 << _KEY_BITS)
    if tag != _TAG:
        raise RuntimeError(
            "routers and dropout cannot draw before set_position(seed, step, first_token), or after torch.manual_seed "
            "has replaced that position; call set_position(...) last before each forward, or eval() on the model to "
            "draw nothing"
        )
    return Position(key, first_token)


@torch.compiler.disable  # it cannot trace the hash of words
def bits(words: str, tokens: Int[Tensor, "*tokens"], columns: Int[Tensor, "*columns"]) -> Int[Tensor, "*both"]:
    """Numbers of 32 bits, each a function of `words`, of its token's number and of its column alone.

    Args:
        words: Further numbers that they depend on; different words give unrelated numbers.
        tokens: Numbers of tokens, at least 0.
        columns: Numbers of columns, at least 0. `tokens` and `columns` are broadcast against each other.

    Returns:
        int64, from 0 to 2³² − 1.
    """
    first, second = _hash(words)
    row = _mix(tokens.long() + first & _MASK)
    column = columns * 0x9E3779B9  # 2³² over the golden ratio: neighboring columns come far apart
    return _mix(row + column + second & _MASK)


def uniform(words: str, tokens: Int[Tensor, " tokens"], columns: int) -> Float[Tensor, "tokens columns"]:
    """Numbers between 0 and 1, neither of them included, evenly distributed: `bits` of this many columns per token."""
    return (bits(words, tokens[:, None], torch.arange(columns, device=tokens.device)).double() + 0.5) / 2**32


def normal(uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Turn numbers between 0 and 1 into normally distributed ones, of mean 0 and deviation 1."""
    return torch.special.ndtri(uniform)


def _hash(words: str) -> tuple[int, int]:
    """Two numbers of 32 bits, the same on every machine."""
    digest = hashlib.sha256(words.encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def _mix(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """A bijection of numbers of 32 bits that changes half of all bits when one changes; it overwrites x."""
    # Held in 64 bits. Both factors are below 2³¹, so that no product overflows.
    x ^= x >> 16
    x.mul_(0x21F0AAAD).bitwise_and_(_MASK)
    x ^= x >> 15
    x.mul_(0x735A2D97).bitwise_and_(_MASK)
    x ^= x >> 15
    return x
