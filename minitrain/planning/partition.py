"""Chains on chains: cut a list of layers into p stages, so that the slowest stage is as fast as possible.

**Idea.** A pipeline is as fast as its slowest stage. If the last stage begins at layer s, the layers before s must have
the best cut into p − 1 stages, so the best cut is found stage by stage, from the first. A cut may cost something too:
the message that carries activations over it, which takes as long as it takes however the layers are divided.

**Source.** Bokhari 1988, "Partitioning problems in parallel, pipeline, and distributed computing"; Pinar & Aykanat
2004, "Fast optimal load balancing algorithms for 1D partitioning", §3, for the dynamic program and faster ways.
**Sent.** Nothing: it plans with the numbers of a profile.
**Cost.** O(pN²) steps for N layers. `pipeline_parallel/splitting.py` measures a model's layers, and cuts it.
Also called linear partition, chains-to-chains, `balance_by_time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

Cut = tuple[float, list[int]]  # seconds of the slowest stage or message; layers of each stage


def partition(seconds: Sequence[float], p: int, messages: Sequence[float] = ()) -> Cut:
    """The best cut into exactly p stages; among equals, the last stages get the most layers.

    Args:
        seconds: Of each layer, forward and backward.
        p: Stages, each of which gets at least one layer.
        messages: Seconds of the messages after each layer, if the pipeline is cut there; without them, none.
    """
    layers = len(seconds)
    assert 1 <= p <= layers, f"{p=} stages need a layer each, and there are {layers}; use 1 to {layers}"
    assert min(seconds) >= 0, f"a layer takes less than 0 seconds: {seconds=}"
    messages = messages or [0.0] * layers
    assert len(messages) == layers and min(messages) >= 0, f"{messages=} need a number from 0 on for each layer"
    # The sum of layers i to j−1 is up_to[j] − up_to[i].
    up_to = [0.0, *accumulate(seconds)]
    # best[j]: the first j layers in as many stages as so far, which is one to begin with.
    best: list[Cut] = [(total, [j]) for j, total in enumerate(up_to)]
    for stages in range(2, p + 1):
        longer: list[Cut] = [(float("inf"), [])] * stages
        for j in range(stages, layers + 1):
            # The last of the stages has layers s to j−1, and gets its input by the message after layer s−1.
            ways = [
                (max(best[s][0], messages[s - 1], up_to[j] - up_to[s]), s)
                for s in range(stages - 1, j)
            ]  # fmt: skip
            slowest, s = min(ways)
            longer.append((slowest, [*best[s][1], j - s]))
        best = longer
    return best[layers]


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
