"""Mistakes in the chapter on context parallelism."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("context_parallel.online_softmax", "elements that are not finite"),
    # Merged without the maxima: exp overflows.
    ("context_parallel.online_softmax.add_block", "torch.maximum(m, x.amax(-1, keepdim=True))", "torch.zeros_like(m)"),
    by_claim("context_parallel.online_softmax", "output, dQ, dK, dV: distance from one device's"),
    # Sums with the old maximum are added to sums with the new one.
    ("context_parallel.online_softmax.add_block", "o * shrink", "o"),
    ("context_parallel.online_softmax.add_block", "s * shrink", "s"),
    ("context_parallel.online_softmax.finish", "m + s.log()", "s.log()"),
    by_claim("context_parallel.online_softmax", "output, dQ, dK, dV: distance from one device's, scores to ±√5"),
    ("context_parallel.online_softmax.gradients", "(grad_o * output)", "(p * grad_p)"),
    by_claim("context_parallel.online_softmax", "scores of each sequence and head at once"),
    (
        "context_parallel.online_softmax.OnlineSoftmax.forward",
        "key.split(block, -2), value.split(block, -2), at.split(block)",
        "[key], [value], [at]",
    ),
    by_claim("context_parallel.ring_attention", "output, dQ, dK, dV: distance from one device's"),
    # Positions begin anew on each rank.
    (
        "context_parallel.ring_attention.positions",
        "torch.arange(seq, device=device).tensor_split(ranks)",
        "[torch.arange(len(c), device=device) for c in torch.arange(seq).tensor_split(ranks)]",
    ),
    # Gradients of K and V are left where they are after the last block.
    (
        "context_parallel.ring_attention.RingAttention.backward",
        "*returning.wait()",
        "*torch.nn.functional.pad(grad_kv, (0, 0, 0, returning.wait().shape[-2] - grad_kv.shape[-2]))",
    ),
    ("context_parallel.ring_attention.RingAttention.backward", "returning.wait() if", "0 * returning.wait() if"),
    by_claim("context_parallel.ring_attention", "bytes sent by this rank, forward"),
    # The chunk travels a hop more than needed.
    ("context_parallel.ring_attention.RingAttention.forward", "if step < ranks - 1 else None", "if True else None"),
    ("costs.context_parallel.ring_forward", "(rank + 1) % ranks", "rank"),
    by_claim("context_parallel.ring_attention", "scores that this rank computes"),
    # Hidden blocks are computed as well: the same results.
    ("context_parallel.ring_attention.RingAttention.forward", "if owner <= rank or not causal", "if True"),
    ("costs.context_parallel.ring_blocks", "+ size)", "+ size / 2)"),
    by_claim("context_parallel.ring_attention", "virtual time of forward, no mask"),
    # Computed only when the next chunk has arrived.
    (
        "context_parallel.ring_attention.RingAttention.forward",
        "            # Where",
        "            coming and coming.wait()\n            # Where",
    ),
    by_claim("context_parallel.zigzag", "scores that this rank computes"),
    ("context_parallel.zigzag.visible", "(owner >= rank)", "True"),
    ("costs.context_parallel.zigzag_blocks", "2 * ranks - 1 - rank", "2 * ranks - 2 - rank"),
    by_claim("context_parallel.zigzag", "output, dQ, dK, dV: distance from one device's"),
    ("context_parallel.zigzag.visible", "(owner >= rank)", "(owner > rank)"),
    # Contiguous chunks again.
    ("context_parallel.zigzag.held", "[rank], chunks[2 * ranks - 1 - rank])", "[2 * rank], chunks[2 * rank + 1])"),
    (
        "context_parallel.zigzag.Zigzag.backward",
        "*returning.wait()",
        "*torch.nn.functional.pad(grad_kv, (0, 0, 0, returning.wait().shape[-2] - grad_kv.shape[-2]))",
    ),
    ("context_parallel.zigzag.Zigzag.backward", "returning.wait() if", "0 * returning.wait() if"),
    by_claim("context_parallel.zigzag", "bytes sent by this rank, forward"),
    ("costs.context_parallel.zigzag_forward", "(rank + 1) % ranks", "rank"),
    by_claim("context_parallel.ring_attention", "bytes sent by this rank, backward"),
    ("costs.context_parallel.gradients_home", "2 * seq", "2 * (seq - 1)"),
    by_test("tests/costs/test_context_parallel.py", "the demo claims other numbers"),
    ("costs.context_parallel.gradients_home", "ranks) if", "ranks - 1) if"),
    by_claim("context_parallel.online_softmax", "bytes kept for backward"),
    ("costs.context_parallel.ring_kept", "4 * width + width // d", "4 * width"),
    by_claim("context_parallel.zigzag", "time of contiguous chunks over"),
    ("costs.context_parallel.ring_causal_time", "ranks - 0.5", "ranks"),
    ("costs.context_parallel.zigzag_causal_time", "ranks / 2", "(ranks + 1) / 2"),
    by_claim("context_parallel.ring_attention", "virtual time of forward, no mask"),
    ("costs.context_parallel.ring_time", "(ranks - 1) * max", "ranks * max"),
)
