"""Mistakes in what makes a Llama or a Qwen, on one device and where its parts are divided."""

from tests.mutations import by_test, table

ONE = "every layout is compared with one device, which has the same mistake"
NO_DEMO = "the demos' models are GPT-2s"

MUTATIONS = table(
    by_test("tests/models/test_llama.py::test_logits_and_gradients_are_those_of_the_papers", ONE),
    ("models.gpt.MLP.mix", "self.gated(gate, wide)", "self.gated(wide, gate)"),
    ("models.gpt.Attention.mix", "(key, self.key_norm)", "(key, self.query_norm)"),
    ("models.rotary.stretched", "(around - 1)", "around"),
    ("models.rotary.stretched", " / factor", ""),
    by_test("tests/models/test_llama.py::test_shared_keys_are_not_repeated_for_backward", ONE),
    ("models.gpt.CausalAttention.forward", "query.is_cuda and ", ""),
    by_test("tests/models/test_llama.py::test_rms_norm_is_torchs_and_keeps_its_input_and_a_number_per_token", ONE),
    ("models.norm._RMSNorm.forward", "(x, weight, scale)", "(wide, weight, scale)"),
    ("models.norm._RMSNorm.backward", ".mean(-1, keepdim=True)", ".sum(-1, keepdim=True)"),
    by_test("tests/models/test_llama.py::test_gate_has_autograds_bits_and_keeps_what_enters_alone[dtype0]", ONE),
    ("models.gate._Gated.backward", "grad_y * F.silu(gate)", "grad_y * gate"),
    by_test("tests/composition/test_llama.py::test_layouts[Qwen-two ranks]", NO_DEMO),
    # Each rank has normed other heads with the same weight.
    ("tensor_parallel.full.norm.PartialNorm.mark_parameters", "mark_partial(parameter)", "pass"),
    ("tensor_parallel.full.attention.ParallelMLP.forward", "together(x, self.gate)", "together(x)"),
    by_test("tests/tensor_parallel/test_parallelize.py", NO_DEMO),
    ("tensor_parallel.full.attention.ParallelMLP.__init__", "mlp.gate, comm", "mlp.up, comm"),
    by_test("tests/sequence_parallel/test_outside.py::test_marks_outlive_copies", NO_DEMO),
    # It would be marked as partial, until it is copied.
    ("sequence_parallel.megatron._put_between_shards", "nn.LayerNorm | RMSNorm", "nn.LayerNorm"),
    by_test("tests/composition/test_gradients.py::test_key_heads_are_summed_among_the_ranks_that_share_them", NO_DEMO),
    # Gradients of different key heads are added up.
    ("tensor_parallel.full.parameter_layout.sum_partial", "shards(parameter, ranks) for parameter, _ in", "1 for _ in"),
)
