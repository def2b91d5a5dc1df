"""The cost of data parallelism: all-reduces and bytes of a step, and its time with and without overlap.

Exact for parameters in the module's order. n ranks; P parameters (tensors) of S bytes together, w bytes per element; B
buckets; bₖ seconds of backward that fill bucket k, cₖ seconds of its all-reduce.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import NamedTuple

from minitrain.costs.communication import NOTHING, Traffic, ring_all_reduce


class Sizes(NamedTuple):
    """A parameter, or a bucket of them; only parameters of one kind, dtype and device, share a bucket."""

    elements: int
    item_size: int
    kind: Hashable = ""


def gradient_bytes(parameters: Sequence[Sizes]) -> int:
    """S bytes go into the all-reduces of a step where no flags travel with the gradients."""
    return sum(p.elements * p.item_size for p in parameters)


def buckets(parameters: Sequence[Sizes], limit: float) -> list[Sizes]:
    """Pack parameters from the last to the first; a bucket is closed by the parameter with which it has `limit` bytes.

    In the order in which they are sent, that of their first parameters; each parameter adds an element for its flag (Li
    et al. 2020, §3.2.2; `bucket_cap_mb` of DDP). A `limit` of 0 makes a bucket of each parameter.
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
    """F + max over k of (b₁ + … + bₖ + cₖ + … + c_B) seconds with overlap, F + Σbₖ + Σcₖ without.

    A flow shop of two machines, backward and the network (Johnson 1954, §2): some bucket k is sent as soon as it is
    full, and after it the network is never idle. `backward` has the bₖ in the order in which buckets fill, and together
    they are all of backward.
    """
    if not overlap:
        return forward + sum(backward) + sum(communication)
    return forward + max(sum(backward[: k + 1]) + sum(communication[k:]) for k in range(len(backward)))
