"""Mistakes in the chapter of tensor parallel."""

from tests.mutations import Mutation

CHAPTER = "minitrain.tensor_parallel"
LAYERS, WORK = "minitrain.costs.tensor_parallel", "minitrain.costs.composition_work"
VOCABULARY = "minitrain.costs.vocabulary"
ATTENTION, LINEAR, DROPOUT = f"{CHAPTER}.attention", f"{CHAPTER}.linear", f"{CHAPTER}.dropout_rng"
TABLE, LOSS, GPT = f"{CHAPTER}.vocab_parallel", f"{CHAPTER}.cross_entropy", f"{CHAPTER}.gpt"
MAPPINGS, CLIPPING = f"{CHAPTER}.mappings", f"{CHAPTER}.clip_grad_norm"
TESTS = "tests/tensor_parallel"

PRACTICE = [
    # f forgets that every rank used x.
    Mutation(f"{MAPPINGS}.Copy.backward", "Reduce", "Copy", MAPPINGS, "small form: payload of all-reduces, f backward"),
    # g adds up a gradient that every rank has whole.
    Mutation(f"{MAPPINGS}.Reduce.backward", "Copy", "Reduce", MAPPINGS, "communications the other way"),
    # A rank keeps the wrong part of a gradient.
    Mutation(f"{CHAPTER}.full.mappings._split", "[comm.rank]", "[-1 - comm.rank]", MAPPINGS, "all operators of both"),
    # The bias before the sum, added once more by each rank.
    Mutation(
        f"{LINEAR}.RowParallelLinear.forward",
        "F.linear(x, self.weight)",
        "F.linear(x, self.weight, self.bias)",
        LINEAR,
        "elements of Y, dX, dA, db that differ",
    ),
    # Waiting for dX before the weights' gradients: the same numbers, without overlap.
    Mutation(
        f"{CHAPTER}.full.linear._ColumnParallel.backward",
        "sent = ctx.comm.all_reduce(grad_x)",
        "(sent := ctx.comm.all_reduce(grad_x)).wait()",
        test=f"{TESTS}/test_linear.py::test_weights_get_their_gradients_while_dx_is_under_way",
        why="all numbers and bytes are the same",
    ),
    Mutation(
        f"{ATTENTION}.ParallelMLP.forward",
        ' approximate="tanh"',
        "",
        ATTENTION,
        "a layer, Y, dX and all gradients against one device: distance, float64",
    ),
    # Key and value heads that ranks share: the slot of another rank's head.
    Mutation(
        f"{CHAPTER}.full.parameter_layout.sum_partial",
        "[rank * count // ranks]",
        "[rank % count]",
        test=f"{TESTS}/test_attention.py::test_shared_heads_need_their_gradients_added",
        why="the small form shares no heads",
    ),
    # Padding takes part in the softmax.
    Mutation(f"{TABLE}.VocabParallelHead.forward", ">= self", "> self", TABLE, "loss and tied table's gradient"),
    Mutation(
        f"{CHAPTER}.full.vocab_parallel.Rows.of",
        "-(-vocabulary // comm.ranks)",
        "vocabulary // comm.ranks + 1",
        TABLE,
        "bytes held by tied embedding and head",
    ),
    # Sums with different maxima are added as they are.
    Mutation(
        f"{LOSS}.CrossEntropy.forward",
        "(all_s * (all_m - m).exp())",
        "all_s",
        LOSS,
        "loss and gradient, distance from F.cross_entropy",
    ),
    Mutation(f"{LOSS}.CrossEntropy.backward", " / m.numel()", "", LOSS, "loss and gradient, distance from F.cross_ent"),
    Mutation(
        f"{CHAPTER}.full.cross_entropy._CrossEntropy.forward",
        "return losses.sum() / count, losses",
        "return losses.mean(), losses",
        LOSS,
        "loss and gradient, distance from F.cross_entropy",
    ),
    # Every rank counts what all of them hold.
    Mutation(f"{CLIPPING}.gradient_norm", "and (sharded or rank == 0)", "", CLIPPING, "norm, all gradients 1"),
    # Small gradients are made larger.
    Mutation(f"{CLIPPING}.clip_grad_norm", ".clamp(max=1.0)", "", CLIPPING, "norm and clipped gradients"),
    # All ranks' heads drop the same weights.
    Mutation(
        f"{DROPOUT}.AttentionDropout.forward",
        "self.rank * heads * seq + heads_and_keys",
        "heads_and_keys",
        DROPOUT,
        ("elements that one device drops otherwise", "heads: elements of a rank's"),
    ),
    Mutation(
        f"{DROPOUT}.drop",
        " / (1 - p)",
        "",
        test=f"{TESTS}/test_dropout_rng.py::test_it_drops_as_often_as_asked_and_keeps_the_mean",
        why="all ranks and one device would keep the same",
    ),
    Mutation(
        f"{CHAPTER}.full.parallelize.parallelize",
        "place_dropout(gpt, comm.rank)",
        "place_dropout(gpt)",
        GPT,
        "loss, gradients, and weights after 5 steps of SGD: distance from one device's, float64",
    ),
]

COMPOSED = [
    Mutation(
        f"{CHAPTER}.gpt.parallelize",
        "gpt.head.weight = gpt.embedding.tokens.weight",
        "pass",
        GPT,
        "small form: distance of loss and gradients",
    ),
]

COSTS = [
    Mutation(
        f"{LAYERS}.all_reduces", "2 * layers, 2 * layers", "2 * layers, layers", GPT, "all-reduces: two per layer"
    ),
    Mutation(f"{LAYERS}.payload", " * item", " * 4", ATTENTION, "small form, a layer: payload of two all-reduces"),
    Mutation(f"{LAYERS}.layer_traffic", "2 * ring", "ring", ATTENTION, "a layer, each way: bytes sent"),
    Mutation(
        f"{LAYERS}.row_first_mlp_traffic", "4 * batch", "batch", ATTENTION, "an MLP cut rows first, each way: bytes"
    ),
    Mutation(f"{WORK}.layer_work", "* shared + rows", "* shared // 2 + rows", ATTENTION, "a layer: FLOPs"),
    # A bias that is whole where it is cut, and cut where it is whole.
    Mutation(
        f"{LAYERS}.column_parameters",
        "(inputs + bias) * (outputs // ranks)",
        "inputs * (outputs // ranks) + bias * outputs",
        LINEAR,
        "bytes of parameters of either layer",
    ),
    Mutation(
        f"{LAYERS}.row_parameters",
        "(inputs // ranks + bias) * outputs",
        "(inputs + bias) * outputs // ranks",
        LINEAR,
        "bytes of parameters of either layer",
    ),
    Mutation(
        "minitrain.costs.composition._norm",
        '("weight", "bias")',
        '("bias",)',
        ATTENTION,
        "a layer: bytes of parameters",
    ),
    Mutation(f"{WORK}.core_work", "(shape.width + shape.mixed_width)", "shape.width", ATTENTION, "a layer: FLOPs"),
    Mutation(f"{LAYERS}.layer_flops", "work.backward + ", "2 * work.backward + ", ATTENTION, "a layer: FLOPs"),
    Mutation(
        f"{VOCABULARY}.padded",
        "-(-vocabulary // unit) * unit",
        "(vocabulary // unit + 1) * unit",
        TABLE,
        "bytes held by tied embedding and head",
    ),
    Mutation(
        f"{VOCABULARY}.padded",
        "ranks * multiple",
        "ranks + multiple - 1",
        test="tests/costs/test_vocabulary.py::test_by_hand",
        why="the demo takes no multiple",
    ),
    Mutation(
        f"{VOCABULARY}.real_rows",
        "max(vocabulary - rank * held, 0)",
        "vocabulary - rank * held",
        test="tests/costs/test_vocabulary.py::test_padding_is_the_least_that_fits",
        why="in the demo no rank has padding only",
    ),
    Mutation(f"{VOCABULARY}.loss_payload", " * ranks", "", LOSS, "payload of the one all-gather"),
    Mutation(f"{VOCABULARY}.loss_traffic", "NUMBERS", "2", LOSS, "loss forward: bytes sent by this rank"),
    Mutation(
        f"{VOCABULARY}.gathered_logits_traffic", "padded(vocabulary, ranks)", "vocabulary", LOSS, "bytes that gather"
    ),
    Mutation(
        f"{VOCABULARY}.table_bytes", "item * hidden", "4 * hidden", TABLE, "bytes held by tied embedding and head"
    ),
]

MUTATIONS = PRACTICE + COMPOSED + COSTS
