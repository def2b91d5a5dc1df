"""The cost of data parallelism: all-reduces and bytes of a step, and its time with and without overlap.

Exact for the real sizes of parameters, in the order in which the module has them.

Notation: n ranks; P parameters (tensors) of S bytes together, w bytes per element; B buckets; bₖ seconds of backward
that fill bucket k, cₖ the seconds of its all-reduce.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import NamedTuple

from minitrain.costs.communication import NOTHING, Traffic, ring_all_reduce


class Sizes(NamedTuple):
    """A parameter, or a bucket of them.

    Attributes:
        elements: Number of elements.
        item_size: Bytes of an element.
        kind: Only parameters of one kind, dtype and device, share a bucket.
    """

    elements: int
    item_size: int
    kind: Hashable = ""


def gradient_bytes(parameters: Sequence[Sizes]) -> int:
    """S bytes go into the all-reduces of a step where no flags travel with the gradients."""
    return sum(p.elements * p.item_size for p in parameters)


def buckets(parameters: Sequence[Sizes], limit: float) -> list[Sizes]:
    """Pack parameters from the last to the first; a bucket is closed by the first parameter that takes it to `limit`.

    With i counting the bytes of a kind from the end, a bucket that begins at byte i ends with the parameter that takes
    the count to i + `limit` or above (Li et al. 2020, §3.2.2; `bucket_cap_mb` of DDP).

    Args:
        parameters: In the module's order.
        limit: Bytes at which a bucket is full; 0 puts each parameter in a bucket of its own.

    Returns:
        The buckets in the order in which they are sent, that of the first parameter in them. Their elements are those
        of the gradients, and one for each parameter's flag.
    """
    found: list[tuple[int, Sizes]] = []  # place of a bucket's first parameter, bucket
    for kind in {parameter.kind for parameter in parameters}:
        places = [i for i in reversed(range(len(parameters))) if parameters[i].kind == kind]
        item_size = parameters[places[0]].item_size
        ends = list(accumulate(parameters[i].elements for i in places))  # elements up to and with each parameter
        first, begin = 0, 0
        while first < len(places):
            full = (j for j in range(first, len(places)) if (ends[j] - begin) * item_size >= limit)
            last = next(full, len(places) - 1)
            flags = last - first + 1
            found.append((places[first], Sizes(ends[last] - begin + flags, item_size, kind)))
            first, begin = last + 1, ends[last]
    return [bucket for _, bucket in sorted(found, key=lambda entry: -entry[0])]


def most_buckets(size: int, limit: float) -> int:
    """⌈S/limit⌉, the most buckets that S bytes of one kind can make: every bucket but the last has at least `limit`."""
    return int(-(-size // limit))


def payload(parameters: Sequence[Sizes]) -> int:
    """S + wP bytes go into the buckets of a step, however they are packed: gradients, and an element for each flag."""
    return sum((p.elements + 1) * p.item_size for p in parameters)


def ring_traffic(parameters: Sequence[Sizes], limit: float, ranks: int, rank: int) -> Traffic:
    """What a rank sends in a step through the ring: about 2(n−1)/n · (S + wP), exactly from the buckets' chunks.

    Patarasuk & Yuan 2009, for each bucket.
    """
    sent = NOTHING
    for elements, item_size, _ in buckets(parameters, limit):
        sent += ring_all_reduce(elements, item_size, ranks, rank)
    return sent


def step_time(forward: float, backward: Sequence[float], communication: Sequence[float], overlap: bool = True) -> float:
    """Seconds of forward, backward and all-reduces: F + max over k of (b₁ + … + bₖ + cₖ + … + c_B) with overlap.

    Buckets go through backward and then through the network, each of which takes one at a time: a flow shop of two
    machines (Johnson 1954, §2). Some bucket k leaves backward and is sent at once, and after it the network is never
    idle. Without overlap the time is F + Σbₖ + Σcₖ.

    Args:
        forward: Seconds of forward.
        backward: bₖ, in the order in which buckets fill; together the seconds of backward.
        communication: cₖ.
        overlap: Whether buckets leave while backward runs.
    """
    if not overlap:
        return forward + sum(backward) + sum(communication)
    return forward + max(sum(backward[: k + 1]) + sum(communication[k:]) for k in range(len(backward)))
