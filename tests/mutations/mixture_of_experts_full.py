"""Mistakes in the exchange of rows, and in today's routers and experts."""

from tests.mutations import Mutation

BALANCED = "minitrain.mixture_of_experts.full.bias_balanced"
BIAS_TEST, TRAINED_TEST = (f"tests/mixture_of_experts/test_{name}.py" for name in ("bias_balanced", "trained"))

MUTATIONS = [
    Mutation(
        "minitrain.collectives.all_to_all.pairwise",
        "places[rank].copy_(parts[rank])",
        "pass",
        "minitrain.mixture_of_experts.all_to_all",
        "elements that differ: there and back",
    ),
    Mutation(
        "minitrain.mixture_of_experts.all_to_all._AllToAll.backward",
        "gradients[0]",
        "gradients[0] * 2",
        "minitrain.mixture_of_experts.all_to_all",
        "elements that differ: there and back",
    ),
    Mutation(
        "minitrain.mixture_of_experts.full.tensor_parallel.PartialMLP.__init__",
        "self.down.rank == 0",
        "True",
        "minitrain.composition.step",
        "losses, norms and weights in 2 steps of AdamW with dropout",
    ),
    Mutation(
        f"{BALANCED}.BiasBalanced.route",
        "gates = score.gather(-1, expert)",
        "gates = (score + self.bias).gather(-1, expert)",
        test="tests/mixture_of_experts/test_formulas.py::test_bias_balanced",
        why="the lesson is about the small form",
    ),
    Mutation(
        f"{BALANCED}.BiasBalanced.route",
        "if self.training:",
        "if True:",
        test=f"{BIAS_TEST}::test_bias_is_the_small_form_s_with_all_micro_batches_and_ranks",
        why="no lesson evaluates with this router",
    ),
    Mutation(
        f"{BALANCED}.BiasBalanced.learn",
        "load.sum() - self.experts * load",
        "self.experts * load - load.sum()",
        test=f"{BIAS_TEST}::test_bias_is_the_small_form_s_with_all_micro_batches_and_ranks",
        why="the lesson is about the small form",
    ),
    Mutation(
        f"{BALANCED}.update",
        "comm.all_reduce(load).wait()",
        "pass",
        test=f"{BIAS_TEST}::test_bias_is_the_small_form_s_with_all_micro_batches_and_ranks",
        why="the lesson is about the small form",
    ),
    Mutation(
        "minitrain.mixture_of_experts.full.top_k.TopK.route",
        "weight = weight / weight.sum(-1, keepdim=True)",
        "pass",
        test="tests/mixture_of_experts/test_formulas.py::test_top_k",
        why="no lesson has this router",
    ),
    Mutation(
        "minitrain.mixture_of_experts.full.router.fractions",
        ".sum((1, 2))",
        "[:, :, 0].sum(1)",
        test="tests/mixture_of_experts/test_formulas.py::test_top_k",
        why="the routers of lessons count one choice of a token",
    ),
    Mutation(
        "minitrain.mixture_of_experts.full.compute.mlps",
        'F.silu(linear(x, *stacked(experts, "gate"))) * wide',
        'F.silu(wide) * linear(x, *stacked(experts, "gate"))',
        test="tests/mixture_of_experts/test_layer.py::test_today_s_blocks",
        why="experts of lessons have no gate",
    ),
    Mutation(
        "minitrain.mixture_of_experts.full.layer.MoELayer.forward",
        "y = y + self.shared(tokens)",
        "y = y + self.shared(tokens) / (1 if self.tensor is None else self.tensor.ranks)",
        test="tests/mixture_of_experts/test_tensor_parallel.py::test_with_every_router[False-bias-grouped]",
        why="layers of lessons have no shared expert",
    ),
    Mutation(
        "minitrain.composition.gradients.Gradients.forget",
        "router.forget()",
        "pass",
        test="tests/mixture_of_experts/test_trained.py::test_a_step_that_is_left_out_changes_no_bias",
        why="no demo leaves out a step with this router",
    ),
    Mutation(
        "minitrain.checkpointing.full.state.state_of",
        "gradients.routers.items()",
        "()",
        test=f"{TRAINED_TEST}::test_checkpoints_and_files_of_weights_keep_the_bias_in_another_layout",
        why="no demo saves a training with this router",
    ),
]
