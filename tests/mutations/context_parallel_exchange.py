"""Mistakes in `ulysses` and `all_gather`."""

from tests.mutations import Mutation

CHAPTER, THEORY = "minitrain.context_parallel", "minitrain.costs.context_parallel"
ULYSSES, GATHER = f"{CHAPTER}.ulysses", f"{CHAPTER}.all_gather"
NEAR = "output, dQ, dK, dV: distance from one device's"
FORWARD, BACKWARD = "bytes sent by this rank, forward", "bytes sent by this rank, backward"
BY_HAND = "tests/costs/test_context_parallel_exchange.py"

PRACTICE = [
    # The copies of all key heads one after the other: a rank's query heads meet other groups' keys.
    Mutation(f"{ULYSSES}.attention", "x.repeat_interleave(times, HEADS)", "x.repeat(1, times, 1, 1)", ULYSSES, NEAR),
    # Heads back in another order.
    Mutation(
        f"{ULYSSES}.attention", "(output, SEQ, HEADS, group)", "(output, SEQ, HEADS, group).flip(1)", ULYSSES, NEAR
    ),
    Mutation(f"{ULYSSES}.AllToAll.forward", "tuple(incoming)", "tuple(incoming.flip(0))", ULYSSES, NEAR),
    Mutation(
        f"{ULYSSES}.AllToAll.forward",
        "x.chunk(ranks, cut)",
        "x.unflatten(cut, (-1, ranks)).unbind(cut + 1)",
        ULYSSES,
        NEAR,
    ),
    Mutation(f"{ULYSSES}.AllToAll.backward", "(gradients[0], ", "(gradients[0].flip(2), ", ULYSSES, NEAR),
    # It sends first, and finds out then.
    Mutation(
        f"{ULYSSES}.attention",
        "assert heads % ranks == 0",
        "AllToAll.apply(q.new_ones(1, ranks, 1, 1), HEADS, SEQ, group)\n    assert heads % ranks == 0",
        ULYSSES,
        "ranks that refuse n − 1 heads",
    ),
    # Positions begin at 0 on every rank.
    Mutation(
        f"{GATHER}.attention", "queries = keys.chunk(ranks)[rank]", "queries = keys.chunk(ranks)[0]", GATHER, NEAR
    ),
    Mutation(f"{GATHER}.attention", "keys <= queries[:, None] if", "keys < queries[:, None] if", GATHER, NEAR),
    # Only this rank's documents, as if each rank had the same.
    Mutation(
        f"{GATHER}.attention",
        "documents[:, None, None, :]",
        "own.repeat(1, ranks)[:, None, None, :]",
        GATHER,
        NEAR,
    ),
    Mutation(f"{GATHER}.attention", "visible & same", "same", GATHER, NEAR),
    # Gradients of other ranks' queries are forgotten.
    Mutation(f"{GATHER}.Gather.backward", "ring.reduce_scatter(parts, ctx.group)", "pass", GATHER, NEAR),
    Mutation(f"{GATHER}.Gather.backward", "return parts[rank]", "return parts[0]", GATHER, NEAR),
    # The sum of all gradients on all ranks: right, at twice the bytes.
    Mutation(f"{GATHER}.Gather.backward", "ring.reduce_scatter(", "ring.all_reduce(", GATHER, BACKWARD),
    Mutation(f"{GATHER}.Gather.forward", "parts[rank] = x", "parts[0] = x", GATHER, NEAR),
]

COSTS = [
    Mutation(f"{THEORY}.repeated_key_heads", "math.lcm(key_heads, ranks)", "key_heads", ULYSSES, FORWARD),
    Mutation(f"{THEORY}.ulysses", "ranks**2", "ranks", ULYSSES, FORWARD),
    Mutation(f"{THEORY}.ulysses", "2 * sizes.heads +", "sizes.heads +", ULYSSES, BACKWARD),
    Mutation(f"{THEORY}.ulysses", "4 * (ranks - 1)", "3 * (ranks - 1)", test=BY_HAND, why="the demo claims bytes"),
    Mutation(
        "minitrain.costs.sequence_parallel.layer_calls",
        "Ways(Calls(2, 2)",
        "Ways(Calls(1, 2)",
        test="tests/costs/test_sequence_parallel.py",
        why="it is another chapter's",
    ),
    Mutation(f"{THEORY}.gather", "2 * sizes.key_heads", "sizes.key_heads", GATHER, FORWARD),
    Mutation(f"{THEORY}.gather", "// ranks,", "// ranks**2,", GATHER, BACKWARD),
    Mutation(f"{THEORY}.gather", "2 * (ranks - 1)", "ranks - 1", test=BY_HAND, why="the demo claims bytes"),
    Mutation(f"{THEORY}.gathered", "2 * sizes.key_heads", "sizes.key_heads", GATHER, "bytes of the gathered K and V"),
    Mutation(f"{THEORY}.gather_over_ulysses", "(heads +", "(2 * heads +", GATHER, "bytes of a gather over those of"),
    Mutation(
        f"{THEORY}.crossing",
        "heads / key_heads + 1",
        "heads / key_heads",
        test=BY_HAND,
        why="it is drawn; the claim is on the ratio, which is 1 there",
    ),
    Mutation(
        f"{THEORY}.ring_step",
        "2 * there",
        "there",
        test=BY_HAND,
        why="it is drawn; the ring's own demo counts its bytes",
    ),
]
MUTATIONS = [*PRACTICE, *COSTS]
