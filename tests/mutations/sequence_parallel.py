"""Mistakes in the chapter of sequence parallel."""

from tests.mutations import by_claim, by_test, table

NOTHING_AGAIN = "the demo computes nothing again"

MUTATIONS = table(
    by_claim("sequence_parallel.mappings", "g and ḡ, small and full form: ⟨Ax", "small form: g and ḡ"),
    # Every rank keeps its own gradient of its tokens, and forgets the others' share.
    (
        "sequence_parallel.mappings.Gather.backward",
        "ReduceScatter.apply(gradient, ctx.group)",
        "gradient.chunk(rank_and_size(ctx.group)[1], 1)[rank_and_size(ctx.group)[0]]",
    ),
    by_claim("sequence_parallel.mappings", "elements of outputs and gradients in which"),
    # The batch first: sequences are mixed, with the right shapes.
    ("sequence_parallel.mappings.Gather.forward", "whole.transpose(0, 1", "whole.reshape(x.shape[0], -1, *x.shape[2:]"),
    by_claim("sequence_parallel.linear", "Y, dX and all"),
    ("sequence_parallel.linear.Row.forward", "return y + bias", "return y + bias / rank_and_size(group)[1]"),
    by_claim("sequence_parallel.linear", "Y, dX and all gradients against"),
    ("sequence_parallel.linear.Column.backward", "grad_y.sum(0)", "grad_y.mean(0)"),
    by_test(
        "tests/sequence_parallel/test_linear.py::test_products_are_made_while_tokens_are_under_way",
        "all numbers and bytes are the same",
    ),
    # Waiting for dX before the weights' gradients: the same numbers, without overlap.
    (
        "sequence_parallel.full.linear._ColumnFromSequence.backward",
        "reducing = start_reduce_scatter(grad_x, ctx.comm)",
        "(reducing := start_reduce_scatter(grad_x, ctx.comm)).wait()",
    ),
    by_claim("sequence_parallel.megatron", "bytes that a layer keeps on one device"),
    # It gathers also what was kept.
    ("sequence_parallel.full.linear.ColumnFromSequence.of", "layer.bias, keep_gathered", "layer.bias, False"),
    ("costs.sequence_parallel.deviations", "float(seq * seq)", "0.0"),
    ("costs.sequence_parallel.kept_terms", " / 2", ""),
    ("costs.activations.layer_terms", "heads * batch * seq * seq", "batch * seq * seq"),
    ("costs.activations.gathered_inputs", "whole - whole / tensor", "whole"),
    by_claim(
        "sequence_parallel.megatron", "both ways: loss, gradient norm, gradients, and weights after 5 steps of SGD"
    ),
    ("sequence_parallel.full.embedding_and_head.PositionsOnSequence.forward", "self.rank * shard", "0"),
    # Chapter 08's dropout, which takes a shard for the whole.
    ("sequence_parallel.megatron._put_between_shards", "shard, part.shards = rank, ranks", "shard, part.shards = 0, 1"),
    by_claim("sequence_parallel.megatron", "both ways: loss, gradient norm"),
    ("sequence_parallel.full.embedding_and_head.HeadFromSequence.forward", "-torch.inf", "0.0"),
    by_claim("sequence_parallel.megatron", "gathered again: bytes that a layer sends"),
    ("costs.sequence_parallel.layer_calls", "(not keep_gathered)", "keep_gathered"),
    by_claim("sequence_parallel.megatron", "gathered again: bytes sent backward"),
    ("costs.sequence_parallel.ends_calls", "1 + (not keep_gathered)", "1"),
    by_claim("sequence_parallel.megatron", "bytes sent forward, both"),
    ("costs.sequence_parallel.model_calls", "layers * a + b", "layers + a + b"),
    by_claim("sequence_parallel.megatron", "bytes sent forward, both ways"),
    ("costs.sequence_parallel._traffic", "* gathered", "* (scattered + gathered)"),
    by_claim("sequence_parallel.megatron", "gathered again: bytes sent"),
    ("costs.sequence_parallel._traffic", "* scattered", "* (gathered + scattered)"),
    by_claim("sequence_parallel.megatron", "gathered again: bytes that a layer keeps"),
    ("costs.sequence_parallel.deviations", "2 * 2 * tokens", "2 * tokens"),
    by_claim("sequence_parallel.megatron", "gathered again: bytes that a layer"),
    ("costs.activations.layer_terms", "tensor if sequence_parallel else 1", "1"),
    by_test("tests/costs/test_activations.py::test_selective_recomputation_saves_what_section_5_says", NOTHING_AGAIN),
    ("costs.activations.layer_terms", '== "selective" and shape == "abss"', '== "selective" and size == 2'),
    by_test("tests/costs/test_activations.py::test_terms_add_up_to_the_equations", NOTHING_AGAIN),
    ("costs.activations.layer_terms", " and bool(kept)", ""),
    by_test("tests/costs/test_activations.py::test_figure_7", NOTHING_AGAIN),
    ("costs.activations.layer", "recompute).values()", '"none").values()'),
)
