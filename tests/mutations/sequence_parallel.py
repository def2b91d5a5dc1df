"""Mistakes in the chapter of sequence parallel."""

from tests.mutations import Mutation

CHAPTER = "minitrain.sequence_parallel"
THEORY, KEPT = "minitrain.costs.sequence_parallel", "minitrain.costs.activations"
MAPPINGS, LINEAR, GPT = f"{CHAPTER}.mappings", f"{CHAPTER}.linear", f"{CHAPTER}.megatron"
ENDS, FULL = f"{CHAPTER}.full.embedding_and_head", f"{CHAPTER}.full.linear"
OTHERS = "bytes that a layer keeps on one device"
BOTH = "both ways: loss, gradient norm, gradients, and weights after 5 steps of SGD"
OF_PAPER = "tests/costs/test_activations.py"

PRACTICE = [
    # Every rank keeps its own gradient of its tokens, and forgets the others' share.
    Mutation(
        f"{MAPPINGS}.Gather.backward",
        "ReduceScatter.apply(gradient, ctx.group)",
        "gradient.chunk(rank_and_size(ctx.group)[1], 1)[rank_and_size(ctx.group)[0]]",
        MAPPINGS,
        ("g and ḡ, small and full form: ⟨Ax", "small form: g and ḡ"),
    ),
    # The batch first: sequences are mixed, with the right shapes.
    Mutation(
        f"{MAPPINGS}.Gather.forward",
        "return whole.transpose(0, 1)",
        "return whole.reshape(x.shape[0], -1, *x.shape[2:])",
        MAPPINGS,
        "elements of outputs and gradients in which",
    ),
    Mutation(
        f"{LINEAR}.Row.forward", "return y + bias", "return y + bias / rank_and_size(group)[1]", LINEAR, "Y, dX and all"
    ),
    Mutation(f"{LINEAR}.Column.backward", "grad_y.sum(0)", "grad_y.mean(0)", LINEAR, "Y, dX and all gradients against"),
    # Waiting for dX before the weights' gradients: the same numbers, without overlap.
    Mutation(
        f"{FULL}._ColumnFromSequence.backward",
        "reducing = start_reduce_scatter(grad_x, ctx.comm)",
        "(reducing := start_reduce_scatter(grad_x, ctx.comm)).wait()",
        test="tests/sequence_parallel/test_linear.py::test_products_are_made_while_tokens_are_under_way",
        why="all numbers and bytes are the same",
    ),
    # It gathers also what was kept.
    Mutation(
        f"{FULL}.ColumnFromSequence.of",
        " = layer.weight, layer.bias, keep_gathered",
        " = layer.weight, layer.bias, False",
        GPT,
        OTHERS,
    ),
    Mutation(
        f"{ENDS}.PositionsOnSequence.forward",
        "self.rank * shard",
        "0",
        GPT,
        BOTH,
    ),
    Mutation(f"{ENDS}.HeadFromSequence.forward", "-torch.inf", "0.0", GPT, "both ways: loss, gradient norm"),
    # Chapter 08's dropout, which takes a shard for the whole.
    Mutation(
        f"{GPT}._put_between_shards",
        "part.shard, part.shards = rank, ranks",
        "part.shard, part.shards = 0, 1",
        GPT,
        BOTH,
    ),
    # The next token is that of the padding.
]

COSTS = [
    Mutation(
        f"{THEORY}.layer_calls", "(not keep_gathered)", "keep_gathered", GPT, "gathered again: bytes that a layer sends"
    ),
    Mutation(f"{THEORY}.ends_calls", "1 + (not keep_gathered)", "1", GPT, "gathered again: bytes sent backward"),
    Mutation(f"{THEORY}.model_calls", "layers * a + b", "layers + a + b", GPT, "bytes sent forward, both"),
    Mutation(f"{THEORY}._traffic", "* gathered", "* (scattered + gathered)", GPT, "bytes sent forward, both ways"),
    Mutation(f"{THEORY}._traffic", "* scattered", "* (gathered + scattered)", GPT, "gathered again: bytes sent"),
    Mutation(f"{THEORY}.deviations", "2 * 2 * tokens", "2 * tokens", GPT, "gathered again: bytes that a layer keeps"),
    Mutation(f"{THEORY}.deviations", "float(seq * seq)", "0.0", GPT, OTHERS),
    Mutation(f"{THEORY}.kept_terms", " / 2", "", GPT, OTHERS),
    Mutation(
        f"{KEPT}.layer_terms", "tensor if sequence_parallel else 1", "1", GPT, "gathered again: bytes that a layer"
    ),
    Mutation(f"{KEPT}.layer_terms", "heads * batch * seq * seq", "batch * seq * seq", GPT, OTHERS),
    Mutation(
        f"{KEPT}.layer_terms",
        'recompute == "selective" and shape == "abss"',
        'recompute == "selective" and size == 2',
        test=f"{OF_PAPER}::test_selective_recomputation_saves_what_section_5_says",
        why="the demo computes nothing again",
    ),
    Mutation(
        f"{KEPT}.layer_terms",
        " and bool(kept)",
        "",
        test=f"{OF_PAPER}::test_terms_add_up_to_the_equations",
        why="the demo computes nothing again",
    ),
    Mutation(f"{KEPT}.gathered_inputs", "whole - whole / tensor", "whole", GPT, OTHERS),
    Mutation(
        f"{KEPT}.extras",
        "-(-vocabulary // tensor)",
        "vocabulary // tensor",
        test=f"{OF_PAPER}::test_without_sequence_parallelism_only_the_logits_are_divided",
        why="the demo counts a layer's bytes",
    ),
    Mutation(
        f"{KEPT}.extras",
        "wide * pipeline",
        "wide",
        test=f"{OF_PAPER}::test_extras_are_those_of_section_4_3",
        why="the demo counts a layer's bytes",
    ),
    Mutation(
        f"{KEPT}.layer",
        "recompute).values()",
        '"none").values()',
        test=f"{OF_PAPER}::test_figure_7",
        why="the demo computes nothing again",
    ),
]

MUTATIONS = PRACTICE + COSTS
