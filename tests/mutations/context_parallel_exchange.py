"""Mistakes in `ulysses` and `all_gather`."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("context_parallel.ulysses", "output, dQ, dK, dV: distance from one device's"),
    # The copies of all key heads one after the other: a rank's query heads meet other groups' keys.
    ("context_parallel.ulysses.attention", "x.repeat_interleave(times, HEADS)", "x.repeat(1, times, 1, 1)"),
    # Heads back in another order.
    ("context_parallel.ulysses.attention", "(output, SEQ, HEADS, group)", "(output, SEQ, HEADS, group).flip(1)"),
    ("context_parallel.ulysses.AllToAll.forward", "tuple(incoming)", "tuple(incoming.flip(0))"),
    ("context_parallel.ulysses.AllToAll.forward", "x.chunk(ranks, cut", "x.unflatten(cut, (-1, ranks)).unbind(cut + 1"),
    ("context_parallel.ulysses.AllToAll.backward", "(gradients[0], ", "(gradients[0].flip(2), "),
    by_claim("context_parallel.ulysses", "ranks that refuse n − 1 heads"),
    # It sends first, and finds out then.
    (
        "context_parallel.ulysses.attention",
        "assert heads % ranks == 0",
        "AllToAll.apply(q.new_ones(1, ranks, 1, 1), HEADS, SEQ, group)\n    assert heads % ranks == 0",
    ),
    by_claim("context_parallel.all_gather", "output, dQ, dK, dV: distance from one device's"),
    # Positions begin at 0 on every rank.
    ("context_parallel.all_gather.attention", "queries = keys.chunk(ranks)[rank]", "queries = keys.chunk(ranks)[0]"),
    ("context_parallel.all_gather.attention", "keys <= queries[:, None] if", "keys < queries[:, None] if"),
    # Only this rank's documents, as if each rank had the same.
    ("context_parallel.all_gather.attention", "documents[:, None, None, :]", "own.repeat(1, ranks)[:, None, None, :]"),
    ("context_parallel.all_gather.attention", "visible & same", "same"),
    # Gradients of other ranks' queries are forgotten.
    ("context_parallel.all_gather.Gather.backward", "ring.reduce_scatter(parts, ctx.group)", "pass"),
    ("context_parallel.all_gather.Gather.backward", "return parts[rank]", "return parts[0]"),
    ("context_parallel.all_gather.Gather.forward", "parts[rank] = x", "parts[0] = x"),
    by_claim("context_parallel.all_gather", "bytes sent by this rank, backward"),
    # The sum of all gradients on all ranks: right, at twice the bytes.
    ("context_parallel.all_gather.Gather.backward", "ring.reduce_scatter(", "ring.all_reduce("),
    ("costs.context_parallel.gather", "// ranks,", "// ranks**2,"),
    by_claim("context_parallel.ulysses", "bytes sent by this rank, forward"),
    ("costs.context_parallel.repeated_key_heads", "math.lcm(key_heads, ranks)", "key_heads"),
    ("costs.context_parallel.ulysses", "ranks**2", "ranks"),
    by_claim("context_parallel.ulysses", "bytes sent by this rank, backward"),
    ("costs.context_parallel.ulysses", "2 * sizes.heads +", "sizes.heads +"),
    by_test("tests/costs/test_context_parallel_exchange.py", "the demo claims bytes"),
    ("costs.context_parallel.ulysses", "4 * (ranks - 1)", "3 * (ranks - 1)"),
    ("costs.context_parallel.gather", "2 * (ranks - 1)", "ranks - 1"),
    by_test("tests/costs/test_sequence_parallel.py", "it is another chapter's"),
    ("costs.sequence_parallel.layer_calls", "Ways(Calls(2, 2)", "Ways(Calls(1, 2)"),
    by_claim("context_parallel.all_gather", "bytes sent by this rank, forward"),
    ("costs.context_parallel.gather", "2 * sizes.key_heads", "sizes.key_heads"),
    by_claim("context_parallel.all_gather", "bytes of the gathered K and V"),
    ("costs.context_parallel.gathered", "2 * sizes.key_heads", "sizes.key_heads"),
    by_claim("context_parallel.all_gather", "bytes of a gather over those of"),
    ("costs.context_parallel.gather_over_ulysses", "(heads +", "(2 * heads +"),
    by_test(
        "tests/costs/test_context_parallel_exchange.py", "it is drawn; the claim is on the ratio, which is 1 there"
    ),
    ("costs.context_parallel.crossing", "heads / key_heads + 1", "heads / key_heads"),
    by_test("tests/costs/test_context_parallel_exchange.py", "it is drawn; the ring's own demo counts its bytes"),
    ("costs.context_parallel.ring_step", "2 * there", "there"),
)
