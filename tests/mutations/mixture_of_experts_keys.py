"""Mistakes by which key claims of the chapter mixture of experts turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.mixture_of_experts"
FULL = "minitrain.mixture_of_experts.full"
THEORY = "minitrain.costs"

MUTATIONS = [
    # Without N the loss depends on the number of experts.
    Mutation(
        f"{HOME}.switch.route", "loss_factor * experts * (f", "loss_factor * (f", f"{HOME}.switch", "loss at perfect"
    ),
    # The mean of squares for the variance.
    Mutation(
        f"{HOME}.noisy_top_k.squared_variation",
        "((values - values.mean()) ** 2)",
        "(values**2)",
        f"{HOME}.noisy_top_k",
        ("small form: choices", "importance loss, k experts"),
    ),
    # The same noise in every step.
    Mutation(
        "minitrain.models.counter_rng.set_position",
        "{seed}/{step}",
        "{seed}",
        test="tests/mixture_of_experts/test_routing.py::test_noise_depends_on_seed_step_and_layer_and_is_off_in_evaluation",
        why="the lesson routes one step",
    ),
    # The second choice is made half as often.
    Mutation(
        f"{FULL}.gshard.GShard.route",
        "2 * weight[..., 1:] > chance",
        "weight[..., 1:] > chance",
        f"{HOME}.gshard",
        "small form: choices",
    ),
    # 1.15 · 100 is 114 when it is cut off.
    Mutation(f"{HOME}.expert_choice.route", " + 1e-9)", ")", f"{HOME}.expert_choice", "tokens of each expert"),
    # No expert may choose the last token.
    Mutation(
        f"{FULL}.expert_choice.ExpertChoice.route",
        "preference.topk(k, -1)",
        "preference[..., :-1].topk(k, -1)",
        f"{HOME}.expert_choice",
        "small form: choices",
    ),
    Mutation(
        f"{HOME}.expert_choice.route",
        "s.T.topk(k, -1)",
        "s.T[:, :-1].topk(k, -1)",
        f"{HOME}.expert_choice",
        "experts lost or won",
    ),
    # The residual is added here, and once more by the block.
    Mutation(
        f"{HOME}.layer.MoELayer.forward",
        "torch.zeros_like(tokens)",
        "tokens.clone()",
        f"{HOME}.layer",
        "elements that a token",
    ),
    # Each expert computes all tokens.
    Mutation(
        f"{HOME}.layer.MoELayer.forward",
        "expert(tokens[token][None])[0]",
        "expert(tokens[None])[0][token]",
        f"{HOME}.layer",
        ("small form: operations of 5", "small form: operations of 10 experts and their router, forward"),
    ),
    # Rows that stay on the rank are counted, too.
    Mutation(
        f"{THEORY}.mixture_of_experts.all_to_all",
        "enumerate(routes[rank]) if other != rank]",
        "enumerate(routes[rank])]",
        f"{HOME}.all_to_all",
        "all-to-all, forward: bytes",
    ),
    # A rank's part for itself is forgotten.
    Mutation(
        "minitrain.collectives.all_to_all.pairwise",
        "places[rank].copy_(parts[rank])",
        "pass",
        f"{HOME}.all_to_all",
        "elements that differ",
    ),
    # Counts in 32 bits.
    Mutation(
        f"{HOME}.expert_parallel.ExpertParallel.forward",
        "bincount(minlength=ranks * local)",
        "bincount(minlength=ranks * local).int()",
        f"{HOME}.expert_parallel",
        "small form: bytes of all-to-alls",
    ),
    # A sum for the mean.
    Mutation(
        f"{HOME}.expert_parallel.ExpertParallel.synchronize",
        "parameter.grad.mul_(1 / self.ranks)",
        "pass",
        f"{HOME}.expert_parallel",
        "small form: elements",
    ),
    # A sum for the mean.
    Mutation(
        f"{FULL}.expert_parallel.ExpertParallel._start",
        "1 / divisor",
        "1",
        f"{HOME}.expert_parallel",
        "small form: elements",
    ),
    # The divisor that is set is not used.
    Mutation(
        f"{FULL}.expert_parallel.ExpertParallel.synchronize",
        "self._start(bucket, self.replicas, self.divisor)",
        "self._start(bucket, self.replicas, self.ranks)",
        test="tests/mixture_of_experts/test_expert_parallel.py::test_wrong_ranks_are_seen",
        why="the lesson leaves the divisor as it is",
    ),
    # Counts only, which have no gradient: the auxiliary loss does nothing.
    Mutation(
        f"{FULL}.switch.Switch.route", "(f * p).sum(-1)", "(f * f).sum(-1)", f"{HOME}.moe_gpt", "entropy of a step's"
    ),
    # The capacity holds in evaluation, and not in training.
    Mutation(
        f"{FULL}.switch.Switch.route",
        "self.capacity_factor if self.training else None",
        "None if self.training else self.capacity_factor",
        f"{HOME}.moe_gpt",
        "part of tokens",
    ),
    # Without the square.
    Mutation(f"{HOME}.z_loss.z_loss", "(z**2)", "z", f"{HOME}.z_loss", "z of a token with equal"),
    # A place of each expert stays empty.
    Mutation(
        f"{HOME}.switch.route",
        "position <= capacity",
        "position < capacity",
        f"{HOME}.dropless",
        "tokens without an expert",
    ),
    # One of an expert's two matrices.
    Mutation(
        f"{THEORY}.mixture_of_experts.expert_flops",
        "4 * routes",
        "2 * routes",
        f"{HOME}.dropless",
        "operations, forward, at two loads",
    ),
]
