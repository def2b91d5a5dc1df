"""Mistakes by which key claims of the chapter sequence parallel turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.sequence_parallel"
THEORY = "minitrain.costs"

MUTATIONS = [
    # A rank sends its own chunk as well.
    Mutation(
        f"{THEORY}.communication._all_chunks_but",
        "rest = elements - chunk_size(elements, ranks, left_out)",
        "rest = elements",
        f"{HOME}.mappings",
        "g and ḡ: bytes",
    ),
    # Added up in float64.
    Mutation(
        f"{HOME}.mappings.ReduceScatter.forward",
        "reduce_scatter(whole, group).wait()",
        "reduce_scatter(whole.double(), group).wait().to(x.dtype)",
        f"{HOME}.linear",
        ("small form: payload forward", "small form: payload backward"),
    ),
    # Autograd keeps the gathered tokens.
    Mutation(
        f"{HOME}.linear.ColumnFromSequence.forward",
        "Column.apply(x, self.weight, self.bias, self.group)",
        "F.linear(g(x, self.group), self.weight, self.bias)",
        f"{HOME}.linear",
        "gathered again, small",
    ),
    # The gathered tokens are kept, whatever was asked for.
    Mutation(
        f"{HOME}.megatron._put_between_shards",
        "ColumnFromSequence.of(part, keep_gathered)",
        "ColumnFromSequence.of(part, True)",
        f"{HOME}.megatron",
        (
            "gathered again: bytes sent",
            "gathered again: bytes that a layer sends",
            "gathered again: bytes that a layer keeps",
        ),
    ),
]
