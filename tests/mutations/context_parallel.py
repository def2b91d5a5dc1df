"""Mistakes in the chapter on context parallelism."""

from tests.mutations import Mutation

HOME, THEORY = "minitrain.context_parallel", "minitrain.costs.context_parallel"
SOFTMAX, RING, ZIGZAG = f"{HOME}.online_softmax", f"{HOME}.ring_attention", f"{HOME}.zigzag"
NEAR = "output, dQ, dK, dV: distance from one device's"
SCORES, COUNTED = "scores that this rank computes", "tests/costs/test_context_parallel.py"
# Cut or padded to as many tokens as this rank has.
LEFT = "*torch.nn.functional.pad(grad_kv, (0, 0, 0, returning.wait().shape[-2] - grad_kv.shape[-2]))"

ONLINE = [
    # Merged without the maxima: exp overflows.
    Mutation(
        f"{SOFTMAX}.add_block",
        "torch.maximum(m, x.amax(-1, keepdim=True))",
        "torch.zeros_like(m)",
        SOFTMAX,
        "elements that are not finite",
    ),
    # Sums with the old maximum are added to sums with the new one.
    Mutation(f"{SOFTMAX}.add_block", "o * shrink", "o", SOFTMAX, NEAR),
    Mutation(f"{SOFTMAX}.add_block", "s * shrink", "s", SOFTMAX, NEAR),
    Mutation(f"{SOFTMAX}.finish", "m + s.log()", "s.log()", SOFTMAX, NEAR),
    Mutation(
        f"{SOFTMAX}.gradients",
        "(grad_o * output)",
        "(p * grad_p)",
        SOFTMAX,
        "output, dQ, dK, dV: distance from one device's, scores to ±√5",
    ),
    Mutation(
        f"{SOFTMAX}.OnlineSoftmax.forward",
        "key.split(block, -2), value.split(block, -2), at.split(block)",
        "[key], [value], [at]",
        SOFTMAX,
        "scores of each sequence and head at once",
    ),
]

RINGS = [
    # Positions begin anew on each rank.
    Mutation(
        f"{RING}.positions",
        "torch.arange(seq, device=device).tensor_split(ranks)",
        "[torch.arange(len(c), device=device) for c in torch.arange(seq).tensor_split(ranks)]",
        RING,
        NEAR,
    ),
    # Gradients of K and V are left where they are after the last block.
    Mutation(f"{RING}.RingAttention.backward", "*returning.wait()", LEFT, RING, NEAR),
    Mutation(f"{RING}.RingAttention.backward", "returning.wait() if", "0 * returning.wait() if", RING, NEAR),
    # The chunk travels a hop more than needed.
    Mutation(
        f"{RING}.RingAttention.forward",
        "if step < ranks - 1 else None",
        "if True else None",
        RING,
        "bytes sent by this rank, forward",
    ),
    # Hidden blocks are computed as well: the same results.
    Mutation(f"{RING}.RingAttention.forward", "if owner <= rank or not causal", "if True", RING, SCORES),
    # Computed only when the next chunk has arrived.
    Mutation(
        f"{RING}.RingAttention.forward",
        "            # Where",
        "            coming and coming.wait()\n            # Where",
        RING,
        "virtual time of forward, no mask, blocks slower",
    ),
    Mutation(f"{ZIGZAG}.visible", "(owner >= rank)", "True", ZIGZAG, SCORES),
    Mutation(f"{ZIGZAG}.visible", "(owner >= rank)", "(owner > rank)", ZIGZAG, NEAR),
    # Contiguous chunks again.
    Mutation(
        f"{ZIGZAG}.held",
        "(chunks[rank], chunks[2 * ranks - 1 - rank])",
        "(chunks[2 * rank], chunks[2 * rank + 1])",
        ZIGZAG,
        NEAR,
    ),
    Mutation(f"{ZIGZAG}.Zigzag.backward", "*returning.wait()", LEFT, ZIGZAG, NEAR),
    Mutation(f"{ZIGZAG}.Zigzag.backward", "returning.wait() if", "0 * returning.wait() if", ZIGZAG, NEAR),
]

COSTS = [
    Mutation(f"{THEORY}.ring_forward", "(rank + 1) % ranks", "rank", RING, "bytes sent by this rank, forward"),
    Mutation(f"{THEORY}.zigzag_forward", "(rank + 1) % ranks", "rank", ZIGZAG, "bytes sent by this rank, forward"),
    Mutation(f"{THEORY}.gradients_home", "2 * seq", "2 * (seq - 1)", RING, "bytes sent by this rank, backward"),
    Mutation(
        f"{THEORY}.gradients_home", "ranks) if", "ranks - 1) if", test=COUNTED, why="the demo claims other numbers"
    ),
    Mutation(f"{THEORY}.ring_kept", "4 * width + width // d", "4 * width", SOFTMAX, "bytes kept for backward"),
    Mutation(f"{THEORY}.ring_blocks", "+ size)", "+ size / 2)", RING, SCORES),
    Mutation(f"{THEORY}.zigzag_blocks", "2 * ranks - 1 - rank", "2 * ranks - 2 - rank", ZIGZAG, SCORES),
    Mutation(f"{THEORY}.ring_causal_time", "ranks - 0.5", "ranks", ZIGZAG, "time of contiguous chunks over"),
    Mutation(f"{THEORY}.zigzag_causal_time", "ranks / 2", "(ranks + 1) / 2", ZIGZAG, "time of contiguous chunks over"),
    Mutation(
        f"{THEORY}.ring_time",
        "(ranks - 1) * max",
        "ranks * max",
        RING,
        "virtual time of forward, no mask, messages slower",
    ),
]

MUTATIONS = ONLINE + RINGS + COSTS
