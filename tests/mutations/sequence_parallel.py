"""Mistakes in the chapter of sequence parallel."""

from tests.mutations import Mutation

CHAPTER = "minitrain.sequence_parallel"
THEORY, KEPT = "minitrain.costs.sequence_parallel", "minitrain.costs.activations"
MAPPINGS, LINEAR, GPT = f"{CHAPTER}.mappings", f"{CHAPTER}.linear", f"{CHAPTER}.megatron"
ENDS, FULL = f"{CHAPTER}.full.embedding_and_head", f"{CHAPTER}.full.linear"
TERMS = "terms of a layer, 16 in each way"
BOTH = "both ways: loss, gradient norm, gradients, and weights after 5 steps of SGD: distance from one device's, "

PRACTICE = [
    # Every rank keeps its own gradient of its tokens, and forgets the others' share.
    Mutation(
        f"{MAPPINGS}.Gather.backward",
        "ReduceScatter.apply(gradient, ctx.group)",
        "gradient.chunk(place(ctx.group)[1], 1)[place(ctx.group)[0]]",
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
        LINEAR,
        "products made while X is gathered again",
    ),
    # It gathers also what was kept.
    Mutation(
        f"{FULL}.ColumnFromSequence.of",
        " = layer.weight, layer.bias, keep_gathered",
        " = layer.weight, layer.bias, False",
        GPT,
        "calls: reduce-scatters each way",
    ),
    Mutation(
        f"{ENDS}.PositionsOnSequence.forward",
        "self.rank * shard",
        "0",
        GPT,
        f"{BOTH}float64",
    ),
    Mutation(f"{ENDS}.HeadFromSequence.forward", "-torch.inf", "0.0", GPT, "both ways: loss, gradient norm"),
    # Chapter 08's dropout, which takes a shard for the whole.
    Mutation(
        f"{GPT}._put_between_shards",
        "part.shard, part.shards = rank, ranks",
        "part.shard, part.shards = 0, 1",
        GPT,
        "a shard's elements that one device drops otherwise",
    ),
    # The next token is that of the padding.
    Mutation(f"{GPT}.EvenSequences.cut", "logits[:, : self.seq]", "logits", GPT, "likeliest tokens generated"),
]

COSTS = [
    Mutation(f"{THEORY}.layer_calls", "(not keep_gathered)", "keep_gathered", GPT, "calls: reduce-scatters each way"),
    Mutation(
        f"{THEORY}.ends_calls", "1 + (not keep_gathered)", "1", GPT, "calls: all-gathers backward, gathered again"
    ),
    Mutation(
        f"{THEORY}.model_calls",
        "layers * one.all_gathers",
        "layers + one.all_gathers",
        GPT,
        "calls: all-gathers forward",
    ),
    Mutation(f"{THEORY}._traffic", "[gathered] *", "[scattered, gathered] *", GPT, "bytes sent forward, both ways"),
    Mutation(f"{THEORY}.partial_elements", "6 * layers", "4 * layers", GPT, "norms, row biases, positions: their"),
    Mutation(f"{THEORY}.deviations", "2 * 2 * tokens", "2 * tokens", GPT, TERMS),
    Mutation(f"{THEORY}.kept_terms", " / 2", "", GPT, "input kept: bytes that a layer keeps"),
    Mutation(
        f"{KEPT}.layer_terms", "tensor if sequence_parallel else 1", "1", GPT, "gathered again: bytes that a layer"
    ),
    Mutation(f"{KEPT}.layer_terms", "heads * batch * seq * seq", "batch * seq * seq", GPT, "one device: bytes that a"),
    Mutation(
        f"{KEPT}.layer_terms",
        'recompute == "selective" and shape == "abss"',
        'recompute == "selective" and size == 2',
        GPT,
        "gathered again: bytes that a layer keeps, attention's core",
    ),
    Mutation(f"{KEPT}.layer_terms", " and bool(kept)", "", GPT, "gathered again: bytes that a layer keeps, all of it"),
    Mutation(f"{KEPT}.gathered_inputs", "whole - whole / tensor", "whole", GPT, "input kept: bytes that a layer keeps"),
    Mutation(
        f"{KEPT}.extras", "-(-vocabulary // tensor)", "vocabulary // tensor", GPT, "gathered again: bytes that the"
    ),
    Mutation(f"{KEPT}.extras", "wide * pipeline", "wide", GPT, "gathered again: bytes that the whole model keeps"),
    Mutation(f"{KEPT}.layer", "recompute).values()", '"none").values()', GPT, "bytes per sbh of the scores of GPT-3"),
]

MUTATIONS = PRACTICE + COSTS
