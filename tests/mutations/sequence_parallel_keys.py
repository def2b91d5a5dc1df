"""Mistakes by which key claims of the chapter sequence parallel turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("sequence_parallel.mappings", "g and ḡ: bytes"),
    # A rank sends its own chunk as well.
    ("costs.communication._all_chunks_but", "= elements - chunk_size(elements, ranks, left_out)", "= elements"),
    by_claim("sequence_parallel.linear", "small form: payload forward", "small form: payload backward"),
    # Added up in float64.
    (
        "sequence_parallel.mappings.ReduceScatter.forward",
        "reduce_scatter(whole, group).wait()",
        "reduce_scatter(whole.double(), group).wait().to(x.dtype)",
    ),
    by_claim("sequence_parallel.linear", "gathered again, small"),
    # Autograd keeps the gathered tokens.
    (
        "sequence_parallel.linear.ColumnFromSequence.forward",
        "Column.apply(x, self.weight, self.bias, self.group)",
        "F.linear(g(x, self.group), self.weight, self.bias)",
    ),
    by_claim(
        "sequence_parallel.megatron",
        "gathered again: bytes sent",
        "gathered again: bytes that a layer sends",
        "gathered again: bytes that a layer keeps",
    ),
    # The gathered tokens are kept, whatever was asked for.
    ("sequence_parallel.megatron._put_between_shards", ".of(part, keep_gathered)", ".of(part, True)"),
)
