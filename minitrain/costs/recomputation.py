"""The gain and the cost of recomputation: bytes kept for backward, and floating-point operations done again.

To the byte for this project's GPT; the paper's account in 16 bits is `minitrain.costs.activations`. L layers, k layers
in a segment, b batch, s sequence, h hidden, a heads, V vocabulary; I bytes of a segment's input, A of all that one
layer keeps, its input included. Products of m × n and n × p count as 2mnp operations, all else as 0.
"""

from __future__ import annotations

import math

from minitrain.costs.memory import gpt_activations, gpt_layer_activations


def segments(layers: int, k: int) -> list[int]:
    """Layers in each segment: k in all but the last, which takes what is left."""
    if layers < 1 or k < 1:
        raise ValueError(f"layers={layers} and k={k} must be at least 1")
    return [min(k, layers - first) for first in range(0, layers, k)]


def kept_by_segments(layers: int, k: int, segment_input: int) -> int:
    """⌈L/k⌉ · I: bytes kept after forward, the input of each segment (Chen et al. 2016, §4.1)."""
    return len(segments(layers, k)) * segment_input


def peak_of_segments(layers: int, k: int, segment_input: int, layer: int) -> int:
    """max over j of (j − 1)I + kA, nearly (L/k)I + kA: the most bytes kept at once in backward.

    Later segments are done; j's own input counts once, as its first layer's (Chen et al. 2016, §4.3, where I = A).
    """
    return max(before * segment_input + size * layer for before, size in enumerate(segments(layers, k)))


def best_k(layers: int, segment_input: int, layer: int) -> int:
    """The k with the smallest peak, by trying all; of several the smallest."""
    return min(range(1, layers + 1), key=lambda k: peak_of_segments(layers, k, segment_input, layer))


def best_k_estimate(layers: int, segment_input: int, layer: int) -> float:
    """√(L · I/A), where the derivative of (L/k)I + kA is zero (Chen et al. 2016, §4.3).

    A transformer's layer keeps some 16 times its input, so that k = 1 is best for up to 32 layers, 2A/I.
    """
    return math.sqrt(layers * segment_input / layer)


def gpt_layer_selective(batch: int, seq: int, hidden: int, heads: int, item: int = 4) -> int:
    """Bytes that a block keeps if attention's core is recomputed: 34sbh in 16 bits (Korthikanti et al. 2022, §5)."""
    kept = gpt_layer_activations(batch, seq, hidden, heads, fused=False, item=item)
    return sum(kept.values()) - kept["attention: softmax"] - kept["attention: mask"]


def gpt_ends(batch: int, seq: int, hidden: int, vocabulary: int, item: int = 4) -> int:
    """Bytes that the model keeps outside of its blocks: embedding, last norm, head and loss."""
    return gpt_activations(batch, seq, hidden, 1, 0, vocabulary, item=item)


def gpt_kept(batch: int, seq: int, hidden: int, layers: int, vocabulary: int, k: int = 1, item: int = 4) -> int:
    """⌈L/k⌉ · bsh elements and the ends: bytes kept with segments of k blocks (Korthikanti et al. 2022, §5)."""
    return kept_by_segments(layers, k, item * batch * seq * hidden) + gpt_ends(batch, seq, hidden, vocabulary, item)


def gpt_peak(
    batch: int,
    seq: int,
    hidden: int,
    heads: int,
    layers: int,
    vocabulary: int,
    k: int = 1,
    fused: bool = True,
    item: int = 4,
) -> int:
    """The most bytes that autograd keeps at once in a step, with segments of k blocks computed again.

    At the end of forward, or when a segment is computed again, and head and loss are done (as `peak_of_segments`).
    """
    layer = sum(gpt_layer_activations(batch, seq, hidden, heads, fused, item).values())
    embedding = 8 * (batch * seq + seq)
    backward = embedding + peak_of_segments(layers, k, item * batch * seq * hidden, layer)
    return max(gpt_kept(batch, seq, hidden, layers, vocabulary, k, item), backward)


def core_flops(batch: int, seq: int, hidden: int) -> int:
    """4bs²h: operations of one attention core's forward (Narayanan et al. 2021, appendix)."""
    return 4 * batch * seq * seq * hidden


def layer_flops(batch: int, seq: int, hidden: int) -> int:
    """24bsh² + 4bs²h: operations of one block's forward, 8bsh² in projections (Narayanan et al. 2021, appendix)."""
    return 24 * batch * seq * hidden * hidden + core_flops(batch, seq, hidden)


def step_flops(batch: int, seq: int, hidden: int, layers: int, vocabulary: int) -> int:
    """72bsLh²(1 + s/6h + V/12hL): operations of a step without recomputation (Korthikanti et al. 2022, appendix A)."""
    return 3 * (layers * layer_flops(batch, seq, hidden) + 2 * batch * seq * hidden * vocabulary)


def full_share(batch: int, seq: int, hidden: int, layers: int, vocabulary: int) -> float:
    """Nearly 1/3: operations that full recomputation adds to a step's (Korthikanti et al. 2022, §5 and appendix A)."""
    again = layers * layer_flops(batch, seq, hidden)
    return again / step_flops(batch, seq, hidden, layers, vocabulary)


def selective_share(batch: int, seq: int, hidden: int, layers: int, vocabulary: int) -> float:
    """Nearly s/(18h + 3s): operations that selective recomputation adds to a step's, where the head is small.

    0.9 % for GPT-3; the paper has 2.7 %, s/(6h + s) of a forward (Korthikanti et al. 2022, §5 and appendix A).
    """
    again = layers * core_flops(batch, seq, hidden)
    return again / step_flops(batch, seq, hidden, layers, vocabulary)


def offloaded_at_once(layers: int, layer: int) -> int:
    """Most bytes of offloaded activations on the device: a block's that goes backward, and the next one's, arriving."""
    return min(layers, 2) * layer
