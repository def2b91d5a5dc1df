"""The gain and the cost of recomputation: bytes kept for backward, and floating-point operations done again.

To the byte for this project's GPT. The paper's account in 16 bits, also under tensor parallelism, is in
`minitrain.costs.activations`.

Letters as in the glossary: L layers, k layers in a segment, b batch, s sequence, h hidden, a heads, V vocabulary; I the
bytes of a segment's input, A those of all that one layer keeps, its input included. A product of an m × n matrix with
one of n × p counts as 2mnp operations, as everywhere; everything else (norms, GELU, softmax) is small and left out.
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
    """Bytes kept after forward, ⌈L/k⌉ · I: the input of each segment.

    Source: Chen et al. 2016, §4.1.
    """
    return len(segments(layers, k)) * segment_input


def peak_of_segments(layers: int, k: int, segment_input: int, layer: int) -> int:
    """The most bytes kept at once in backward: the inputs of segments 1 to j and all of segment j, for the worst j.

    When segment j is computed again, later ones are done and their inputs are freed. Its own input is also the first
    thing that its first layer keeps, and counts once: (j − 1)I + kA. Nearly (L/k)I + kA.

    Args:
        layers: Number of layers, L.
        k: Layers in a segment.
        segment_input: Bytes of a segment's input, I.
        layer: Bytes that a layer keeps, its input included, A.

    Source: Chen et al. 2016, §4.3, where I = A and the peak is O(L/k) + O(k).
    """
    return max(before * segment_input + size * layer for before, size in enumerate(segments(layers, k)))


def best_k(layers: int, segment_input: int, layer: int) -> int:
    """The k with the smallest peak, by trying all; of several the smallest."""
    return min(range(1, layers + 1), key=lambda k: peak_of_segments(layers, k, segment_input, layer))


def best_k_estimate(layers: int, segment_input: int, layer: int) -> float:
    """√(L · I/A), where the derivative of (L/k)I + kA is zero: √L if a layer keeps only its input.

    A transformer's layer keeps some 16 times its input. Then k = 1 is best for up to 32 layers, twice A/I: there k = 2,
    the next choice, needs as much.

    Source: Chen et al. 2016, §4.3.
    """
    return math.sqrt(layers * segment_input / layer)


def gpt_layer_selective(batch: int, seq: int, hidden: int, heads: int, item: int = 4) -> int:
    """Bytes that a block keeps if the core of attention is computed again: all but the s × s softmax and its mask.

    The core's inputs, query, key and value, are kept already.

    Source: Korthikanti et al. 2022, §5: sbh · 34 in 16 bits without parallelism.
    """
    kept = gpt_layer_activations(batch, seq, hidden, heads, fused=False, item=item)
    return sum(kept.values()) - kept["attention: softmax"] - kept["attention: mask"]


def gpt_ends(batch: int, seq: int, hidden: int, vocabulary: int, item: int = 4) -> int:
    """Bytes that the model keeps outside of its blocks: embedding, last norm, head and loss."""
    return gpt_activations(batch, seq, hidden, 1, 0, vocabulary, item=item)


def gpt_kept(batch: int, seq: int, hidden: int, layers: int, vocabulary: int, k: int = 1, item: int = 4) -> int:
    """Bytes that the model keeps after forward if segments of k blocks are computed again; k = 1 is every block.

    ⌈L/k⌉ · bsh elements, and the ends, which are not computed again.

    Source: Korthikanti et al. 2022, §5: sbhL · 2 in 16 bits.
    """
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

    Either at the end of forward, or when a segment is computed again: head and loss are then done, and of the ends only
    the embedding's numbers (8 bytes per token and position) are left.

    Source: as `peak_of_segments`.
    """
    layer = sum(gpt_layer_activations(batch, seq, hidden, heads, fused, item).values())
    embedding = 8 * (batch * seq + seq)
    backward = embedding + peak_of_segments(layers, k, item * batch * seq * hidden, layer)
    return max(gpt_kept(batch, seq, hidden, layers, vocabulary, k, item), backward)


def core_flops(batch: int, seq: int, hidden: int) -> int:
    """Operations of one attention core's forward, 4bs²h: query times keys, and weights times values.

    Source: Narayanan et al. 2021, "Efficient large-scale language model training", appendix.
    """
    return 4 * batch * seq * seq * hidden


def layer_flops(batch: int, seq: int, hidden: int) -> int:
    """Operations of one block's forward, 24bsh² + 4bs²h: 8bsh² in attention's projections, 16bsh² in the MLP, the core.

    Source: Narayanan et al. 2021, appendix.
    """
    return 24 * batch * seq * hidden * hidden + core_flops(batch, seq, hidden)


def step_flops(batch: int, seq: int, hidden: int, layers: int, vocabulary: int) -> int:
    """Operations of a step without recomputation: forward, and twice as many in backward; blocks and head.

    Source: Korthikanti et al. 2022, appendix A: 72bsLh²(1 + s/6h + V/12hL). Narayanan et al. 2021 count 96, with
        recomputation.
    """
    return 3 * (layers * layer_flops(batch, seq, hidden) + 2 * batch * seq * hidden * vocabulary)


def full_share(batch: int, seq: int, hidden: int, layers: int, vocabulary: int) -> float:
    """Operations that full recomputation adds, as a part of a step's: nearly 1/3, one forward on top of three.

    Source: Korthikanti et al. 2022, §5 and appendix A.
    """
    again = layers * layer_flops(batch, seq, hidden)
    return again / step_flops(batch, seq, hidden, layers, vocabulary)


def selective_share(batch: int, seq: int, hidden: int, layers: int, vocabulary: int) -> float:
    """Operations that selective recomputation adds, as a part of a step's: nearly s/(18h + 3s) where the head is small.

    GPT-3 (h = 12288, s = 2048) pays 0.9 %. The paper has 2.7 %, which is s/(6h + s): the core's part of a forward.

    Source: Korthikanti et al. 2022, §5 and appendix A.
    """
    again = layers * core_flops(batch, seq, hidden)
    return again / step_flops(batch, seq, hidden, layers, vocabulary)


def offloaded_at_once(layers: int, layer: int) -> int:
    """Most bytes of offloaded activations on the device: a block's that goes backward, and the next one's, arriving."""
    return min(layers, 2) * layer
