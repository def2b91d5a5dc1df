"""What a rank holds, on one screen: weights, gradients and states by stage of ZeRO, and activations of a 1F1B pipeline.

**Idea.** A layout that does not fit need not be timed. Bytes are the easy half of a plan: weights, gradients and states
follow from the layers of a stage, and activations from those and from how many micro-batches are under way.

**Source.** Rajbhandari et al. 2020, "ZeRO", §5, for what each stage divides; Korthikanti et al. 2022, §4, for what a
layer keeps, here with fused attention, in float32; Narayanan et al. 2021, §2.2, for p − i micro-batches on stage i.
**Predicted.** Bytes on the dot, for a dense GPT with a tied head, learned positions and AdamW, without tensor
parallelism or dropout. The dry run (`minitrain.planning.plan`) covers all other layouts. Also called memory estimator.
"""

from __future__ import annotations

from typing import NamedTuple

W = 4  # bytes of a number in float32
TOGETHER = 25 * 2**20 // W  # elements of layers that travel together, as in a bucket of torch's DDP


class GPT(NamedTuple):
    L: int  # layers
    h: int  # hidden
    a: int  # heads
    s: int  # positions, and tokens in a sequence
    V: int  # vocabulary


def held(
    gpt: GPT, i: int, p: int = 1, d: int = 1, b: int = 1, m: int = 1, zero: int = 0, full: bool = False, c: int = 1
) -> dict[str, int]:
    """Bytes on a rank of stage i.

    Args:
        gpt: The model.
        i: Stage, from 0.
        p: Stages of the pipeline.
        d: Data-parallel ranks.
        b: Sequences in a micro-batch.
        m: Micro-batches in a step.
        zero: Stage of ZeRO.
        full: Whether layers are recomputed in backward, so that only their inputs are kept.
        c: Context-parallel ranks, which share each sequence by zigzag.
    """
    L, h, a, s, V = gpt
    assert 0 <= i < p <= L, f"stage {i=} of {p=}: there are {L} layers, so use p up to {L}, and i from 0 to p−1"
    assert s % (2 * c) == 0 or c == 1, f"{c=} ranks hold two chunks each: use a divisor of {s // 2} for {s} positions"
    assert min(d, b, m, c) >= 1 and zero in (0, 1, 2, 3), f"invalid: {d=}, {b=}, {m=}, {c=}, {zero=}"
    assert zero < 2 or p == 1, f"{zero=} would send gradients of each micro-batch of {p=} stages; use zero=1"
    # The first stages have a layer more where p does not divide L.
    own, first, last = L // p + (i < L % p), i == 0, i == p - 1
    # Matrices, and biases and norms, of the embedding, of each layer, and of the last norm with a copy of the table.
    layers = [(first * (V + s) * h, 0), *[(12 * h * h, 13 * h)] * own, ((last and not first) * V * h, last * 2 * h)]
    # Each kind lies in a flat buffer, with ZeRO 2 and 3 for every layer, else for as many as have 25 MB.
    flat = [0, 0]
    for matrices, others in layers:
        if flat[-2] + flat[-1] >= (TOGETHER if zero < 2 else 1):
            flat += [0, 0]
        flat[-2:] = flat[-2] + matrices, flat[-1] + others
    flat = [elements for elements in flat if elements]
    # ZeRO pads each so that its d·c shards are equal.
    whole, shards = sum(-(-n // (d * c)) * d * c for n in flat), sum(-(-n // (d * c)) for n in flat)
    if zero == 0:
        whole = shards = sum(flat)
    # A rank has all weights, and s/c tokens of each sequence. No keys of other ranks are kept.
    s //= c
    # What a micro-batch keeps: of a layer 16 bsh, mean and deviation of two norms, a number per row of scores.
    layer = W * (16 * b * s * h + 4 * b * s + a * b * s)
    kept_of_layer = W * b * s * h if full else layer
    # Token numbers (8 bytes), the last norm and the head, targets, and log-probabilities.
    logits = last * (W * (2 * h + 2) * b * s + 8 * b * s + W * (b * s * V + 1))
    kept = own * kept_of_layer + first * (8 * b * s + 8 * s) + logits
    # 1F1B: stage i has begun p − i micro-batches when the first comes back; one layer at a time is kept in full.
    under_way = min(m, p - i)
    return {
        "parameters": W * (shards if zero == 3 else whole),
        "gradients": W * (shards if zero >= 2 else whole),
        "optimizer states": 2 * W * shards + 4 * len(flat),
        "activations": under_way * kept + max(0, full * (layer - kept_of_layer) - logits),
    }


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
