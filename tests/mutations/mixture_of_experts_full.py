"""Mistakes in the exchange of rows, and in today's routers and experts."""

from tests.mutations import by_claim, by_test, table

SMALL_FORM = "the lesson is about the small form"

MUTATIONS = table(
    by_claim("mixture_of_experts.all_to_all", "elements that differ: there and back"),
    ("mixture_of_experts.all_to_all._AllToAll.backward", "gradients[0]", "gradients[0] * 2"),
    by_claim("composition.step", "losses, norms and weights in 2 steps of AdamW with dropout"),
    ("mixture_of_experts.full.tensor_parallel.PartialMLP.__init__", "self.down.rank == 0", "True"),
    by_test("tests/mixture_of_experts/test_formulas.py::test_bias_balanced", SMALL_FORM),
    ("mixture_of_experts.full.bias_balanced.BiasBalanced.route", "score.gather(-1,", "(score + self.bias).gather(-1,"),
    by_test(
        "tests/mixture_of_experts/test_bias_balanced.py::test_bias_is_the_small_form_s_with_all_micro_batches_and_ranks",
        "no lesson evaluates with this router",
    ),
    ("mixture_of_experts.full.bias_balanced.BiasBalanced.route", "if self.training:", "if True:"),
    by_test(
        "tests/mixture_of_experts/test_bias_balanced.py::test_bias_is_the_small_form_s_with_all_micro_batches_and_ranks",
        SMALL_FORM,
    ),
    (
        "mixture_of_experts.full.bias_balanced.BiasBalanced.learn",
        "load.sum() - self.experts * load",
        "self.experts * load - load.sum()",
    ),
    ("mixture_of_experts.full.bias_balanced.update", "comm.all_reduce(load).wait()", "pass"),
    by_test("tests/mixture_of_experts/test_formulas.py::test_top_k", "no lesson has this router"),
    ("mixture_of_experts.full.top_k.TopK.route", "weight = weight / weight.sum(-1, keepdim=True)", "pass"),
    by_test(
        "tests/mixture_of_experts/test_formulas.py::test_top_k", "the routers of lessons count one choice of a token"
    ),
    ("mixture_of_experts.full.router.fractions", ".sum((1, 2))", "[:, :, 0].sum(1)"),
    by_test("tests/mixture_of_experts/test_layer.py::test_today_s_blocks", "experts of lessons have no gate"),
    (
        "mixture_of_experts.full.compute.mlps",
        'gated(linear(x, *stacked(experts, "gate")), wide)',
        'gated(wide, linear(x, *stacked(experts, "gate")))',
    ),
    by_test(
        "tests/mixture_of_experts/test_tensor_parallel.py::test_with_every_router[False-bias-grouped]",
        "layers of lessons have no shared expert",
    ),
    (
        "mixture_of_experts.full.layer.MoELayer.forward",
        "y = y + self.shared(tokens)",
        "y = y + self.shared(tokens) / (1 if self.tensor is None else self.tensor.ranks)",
    ),
    by_test(
        "tests/mixture_of_experts/test_trained.py::test_a_step_that_is_left_out_changes_no_bias",
        "no demo leaves out a step with this router",
    ),
    ("composition.gradients.Gradients.forget", "router.forget()", "pass"),
    by_test(
        "tests/mixture_of_experts/test_trained.py::test_checkpoints_and_files_of_weights_keep_the_bias_in_another_layout",
        "no demo saves a training with this router",
    ),
    ("checkpointing.full.state.state_of", "gradients.routers.items()", "()"),
)
