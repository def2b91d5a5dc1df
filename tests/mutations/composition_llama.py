"""Mistakes in what makes a Llama or a Qwen, on one device and where its parts are divided."""

from tests.mutations import Mutation

PAPERS = "tests/models/test_llama.py"
LAYOUTS = "tests/composition/test_llama.py::test_layouts[Qwen-two ranks]"
ONE = "every layout is compared with one device, which has the same mistake"
LOGITS = "test_logits_and_gradients_are_those_of_the_papers"
SHARED = "test_shared_keys_are_not_repeated_for_backward"
NORM = "test_rms_norm_is_torchs_and_keeps_its_input_and_a_number_per_token"
NO_DEMO = "the demos' models are GPT-2s"
FULL = "minitrain.tensor_parallel.full"

MUTATIONS = [
    *(
        Mutation(f"minitrain.models.{where}", old, new, test=f"{PAPERS}::{test}", why=ONE)
        for where, old, new, test in (
            ("gpt.MLP.mix", "F.silu(gate) * wide", "F.silu(wide) * gate", LOGITS),
            ("gpt.Attention.mix", "(key, self.key_norm)", "(key, self.query_norm)", LOGITS),
            ("gpt.CausalAttention.forward", "query.is_cuda and ", "", SHARED),
            ("rotary.stretched", "(around - 1)", "around", LOGITS),
            ("rotary.stretched", " / factor", "", LOGITS),
            ("norm._RMSNorm.forward", "(x, weight, scale)", "(wide, weight, scale)", NORM),
            ("norm._RMSNorm.backward", ".mean(-1, keepdim=True)", ".sum(-1, keepdim=True)", NORM),
        )
    ),
    *(
        Mutation(f"{FULL}.{where}", old, new, test=test, why=NO_DEMO)
        for where, old, new, test in (
            # Each rank has normed other heads with the same weight.
            ("norm.PartialNorm.mark_parameters", "mark_partial(parameter)", "pass", LAYOUTS),
            ("attention.ParallelMLP.forward", "together(x, self.gate)", "together(x)", LAYOUTS),
            (
                "attention.ParallelMLP.__init__",
                "mlp.gate, comm",
                "mlp.up, comm",
                "tests/tensor_parallel/test_parallelize.py",
            ),
        )
    ),
    # It would be marked as partial, until it is copied.
    Mutation(
        "minitrain.sequence_parallel.megatron._put_between_shards",
        "nn.LayerNorm | RMSNorm",
        "nn.LayerNorm",
        test="tests/sequence_parallel/test_outside.py::test_marks_outlive_copies",
        why=NO_DEMO,
    ),
    # Gradients of different key heads are added up.
    Mutation(
        f"{FULL}.parameter_layout.sum_partial",
        "[shards(parameter, ranks) for parameter, _ in pairs]",
        "[1 for _ in pairs]",
        test="tests/composition/test_gradients.py::test_key_heads_are_summed_among_the_ranks_that_share_them",
        why=NO_DEMO,
    ),
]
