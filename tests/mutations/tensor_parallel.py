"""Mistakes in the chapter of tensor parallel."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("tensor_parallel.mappings", "small form: payload of all-reduces, f backward"),
    # f forgets that every rank used x.
    ("tensor_parallel.mappings.Copy.backward", "Reduce", "Copy"),
    by_claim("tensor_parallel.mappings", "communications the other way"),
    # g adds up a gradient that every rank has whole.
    ("tensor_parallel.mappings.Reduce.backward", "Copy", "Reduce"),
    by_claim("tensor_parallel.mappings", "all operators of both"),
    # A rank keeps the wrong part of a gradient.
    ("tensor_parallel.full.mappings._split", "[comm.rank]", "[-1 - comm.rank]"),
    by_claim("tensor_parallel.linear", "elements of Y, dX, dA, db that differ"),
    # The bias before the sum, added once more by each rank.
    ("tensor_parallel.linear.RowParallelLinear.forward", "linear(x, self.weight)", "linear(x, self.weight, self.bias)"),
    by_test(
        "tests/tensor_parallel/test_linear.py::test_weights_get_their_gradients_while_dx_is_under_way",
        "all numbers and bytes are the same",
    ),
    # Waiting for dX before the weights' gradients: the same numbers, without overlap.
    (
        "tensor_parallel.full.linear._ColumnParallel.backward",
        "sent = ctx.comm.all_reduce(grad_x)",
        "(sent := ctx.comm.all_reduce(grad_x)).wait()",
    ),
    by_claim("tensor_parallel.attention", "a layer, Y, dX and all gradients against one device: distance, float64"),
    ("tensor_parallel.attention.ParallelMLP.forward", ' approximate="tanh"', ""),
    by_test(
        "tests/tensor_parallel/test_attention.py::test_shared_heads_need_their_gradients_added",
        "the small form shares no heads",
    ),
    # Key and value heads that ranks share: the slot of another rank's head.
    ("tensor_parallel.full.parameter_layout.sum_partial", "[rank * count // ranks]", "[rank % count]"),
    by_claim("tensor_parallel.vocab_parallel", "loss and tied table's gradient"),
    # Padding takes part in the softmax.
    ("tensor_parallel.vocab_parallel.VocabParallelHead.forward", ">= self", "> self"),
    by_claim("tensor_parallel.vocab_parallel", "bytes held by tied embedding and head"),
    ("tensor_parallel.full.vocab_parallel.Rows.of", "-(-vocabulary // comm.ranks)", "vocabulary // comm.ranks + 1"),
    ("costs.vocabulary.padded", "-(-vocabulary // unit) * unit", "(vocabulary // unit + 1) * unit"),
    ("costs.vocabulary.table_bytes", "item * hidden", "4 * hidden"),
    by_claim("tensor_parallel.cross_entropy", "loss and gradient, distance from F.cross_entropy"),
    # Sums with different maxima are added as they are.
    ("tensor_parallel.cross_entropy.CrossEntropy.forward", "(all_s * (all_m - m).exp())", "all_s"),
    ("tensor_parallel.full.cross_entropy._CrossEntropy.forward", "return losses.sum() / count", "return losses.mean()"),
    by_claim("tensor_parallel.cross_entropy", "loss and gradient, distance from F.cross_ent"),
    ("tensor_parallel.cross_entropy.CrossEntropy.backward", " / m.numel()", ""),
    by_claim("tensor_parallel.clip_grad_norm", "norm, all gradients 1"),
    # Every rank counts what all of them hold.
    ("tensor_parallel.clip_grad_norm.gradient_norm", "and (sharded or rank == 0)", ""),
    by_claim("tensor_parallel.clip_grad_norm", "norm and clipped gradients"),
    # Small gradients are made larger.
    ("tensor_parallel.clip_grad_norm.clip_grad_norm", ".clamp(max=1.0)", ""),
    by_claim("tensor_parallel.dropout_rng", "elements that one device drops otherwise", "heads: elements of a rank's"),
    # All ranks' heads drop the same weights.
    (
        "tensor_parallel.dropout_rng.AttentionDropout.forward",
        "self.rank * heads * seq + heads_and_keys",
        "heads_and_keys",
    ),
    by_test(
        "tests/tensor_parallel/test_dropout_rng.py::test_it_drops_as_often_as_asked_and_keeps_the_mean",
        "all ranks and one device would keep the same",
    ),
    ("tensor_parallel.dropout_rng.drop", " / (1 - p)", ""),
    by_claim(
        "tensor_parallel.gpt", "loss, gradients, and weights after 5 steps of SGD: distance from one device's, float64"
    ),
    ("tensor_parallel.full.parallelize.parallelize", "place_dropout(gpt, comm.rank)", "place_dropout(gpt)"),
    by_claim("tensor_parallel.gpt", "small form: distance of loss and gradients"),
    ("tensor_parallel.gpt.parallelize", "gpt.head.weight = gpt.embedding.tokens.weight", "pass"),
    by_claim("tensor_parallel.gpt", "all-reduces: two per layer"),
    ("costs.tensor_parallel.all_reduces", "2 * layers, 2 * layers", "2 * layers, layers"),
    by_claim("tensor_parallel.attention", "small form, a layer: payload of two all-reduces"),
    ("costs.tensor_parallel.payload", " * item", " * 4"),
    by_claim("tensor_parallel.attention", "a layer, each way: bytes sent"),
    ("costs.tensor_parallel.layer_traffic", "2 * ring", "ring"),
    by_claim("tensor_parallel.attention", "an MLP cut rows first, each way: bytes"),
    ("costs.tensor_parallel.row_first_mlp_traffic", "4 * batch", "batch"),
    by_claim("tensor_parallel.attention", "a layer: FLOPs"),
    ("costs.composition_work.layer_work", "* shared + rows", "* shared // 2 + rows"),
    ("costs.composition_work.core_work", "(shape.width + shape.mixed_width)", "shape.width"),
    ("costs.tensor_parallel.layer_flops", "work.backward + ", "2 * work.backward + "),
    by_claim("tensor_parallel.linear", "bytes of parameters of either layer"),
    # A bias that is whole where it is cut, and cut where it is whole.
    (
        "costs.tensor_parallel.column_parameters",
        "(inputs + bias) * (outputs // ranks)",
        "inputs * (outputs // ranks) + bias * outputs",
    ),
    ("costs.tensor_parallel.row_parameters", "inputs // ranks + bias) * outputs", "inputs + bias) * outputs // ranks"),
    by_claim("tensor_parallel.attention", "a layer: bytes of parameters"),
    ("costs.composition._norm", '("weight", "bias")', '("bias",)'),
    by_test("tests/costs/test_vocabulary.py::test_by_hand", "the demo takes no multiple"),
    ("costs.vocabulary.padded", "ranks * multiple", "ranks + multiple - 1"),
    by_test(
        "tests/costs/test_vocabulary.py::test_padding_is_the_least_that_fits", "in the demo no rank has padding only"
    ),
    ("costs.vocabulary.real_rows", "max(vocabulary - rank * held, 0)", "vocabulary - rank * held"),
    by_claim("tensor_parallel.cross_entropy", "payload of the one all-gather"),
    ("costs.vocabulary.loss_payload", " * ranks", ""),
    by_claim("tensor_parallel.cross_entropy", "loss forward: bytes sent by this rank"),
    ("costs.vocabulary.loss_traffic", "NUMBERS", "2"),
    by_claim("tensor_parallel.cross_entropy", "bytes that gather"),
    ("costs.vocabulary.gathered_logits_traffic", "padded(vocabulary, ranks)", "vocabulary"),
)
