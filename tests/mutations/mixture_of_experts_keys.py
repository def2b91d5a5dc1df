"""Mistakes by which key claims of the chapter mixture of experts turn false that no other mutation names."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("mixture_of_experts.switch", "loss at perfect"),
    # Without N the loss depends on the number of experts.
    ("mixture_of_experts.switch.route", "loss_factor * experts * (f", "loss_factor * (f"),
    by_claim("mixture_of_experts.noisy_top_k", "importance loss, k experts"),
    # The mean of squares for the variance.
    ("mixture_of_experts.noisy_top_k.squared_variation", "((values - values.mean()) ** 2)", "(values**2)"),
    by_test(
        "tests/mixture_of_experts/test_routing.py::test_noise_depends_on_seed_step_and_layer_and_is_off_in_evaluation",
        "the lesson routes one step",
    ),
    # The same noise in every step.
    ("models.counter_rng.set_position", "{seed}/{step}", "{seed}"),
    by_claim("mixture_of_experts.expert_choice", "tokens of each expert"),
    # 1.15 · 100 is 114 when it is cut off.
    ("mixture_of_experts.expert_choice.route", " + 1e-9)", ")"),
    by_test("tests/mixture_of_experts/test_routing.py::test_small_form", "the lesson has no full form beside it"),
    # No expert may choose the last token.
    ("mixture_of_experts.full.expert_choice.ExpertChoice.route", "s.topk(k,", "s[..., :-1].topk(k,"),
    by_claim("mixture_of_experts.expert_choice", "experts lost or won"),
    ("mixture_of_experts.expert_choice.route", "s.T.topk(k, -1)", "s.T[:, :-1].topk(k, -1)"),
    by_claim("mixture_of_experts.layer", "elements that a token"),
    # The residual is added here, and once more by the block.
    ("mixture_of_experts.layer.MoELayer.forward", "torch.zeros_like(tokens)", "tokens.clone()"),
    by_claim(
        "mixture_of_experts.layer",
        "small form: operations of 5",
        "small form: operations of 10 experts and their router, forward",
    ),
    # Each expert computes all tokens.
    ("mixture_of_experts.layer.MoELayer.forward", "expert(tokens[token][None])[0]", "expert(tokens[None])[0][token]"),
    by_claim("mixture_of_experts.all_to_all", "all-to-all, forward: bytes"),
    # Rows that stay on the rank are counted, too.
    ("costs.mixture_of_experts.all_to_all", "enumerate(routes[rank]) if other != rank]", "enumerate(routes[rank])]"),
    by_claim("mixture_of_experts.all_to_all", "elements that differ", "elements that differ: there and back"),
    # A rank's part for itself is forgotten.
    ("collectives.all_to_all.pairwise", "places[rank].copy_(parts[rank])", "pass"),
    by_claim("mixture_of_experts.expert_parallel", "small form: bytes of all-to-alls"),
    # Counts in 32 bits.
    ("mixture_of_experts.expert_parallel.ExpertParallel.forward", "=ranks * local)", "=ranks * local).int()"),
    by_claim("mixture_of_experts.expert_parallel", "small form: distance"),
    # A sum for the mean.
    ("mixture_of_experts.expert_parallel.ExpertParallel.synchronize", "parameter.grad.mul_(1 / self.ranks)", "pass"),
    by_test(
        "tests/mixture_of_experts/test_expert_parallel.py::test_a_gpt",
        "the lesson is about the small form",
    ),
    # A sum for the mean.
    ("mixture_of_experts.full.expert_parallel.ExpertParallel._start", "1 / divisor", "1"),
    by_test(
        "tests/mixture_of_experts/test_expert_parallel.py::test_wrong_ranks_are_seen",
        "the lesson leaves the divisor as it is",
    ),
    # The divisor that is set is not used.
    ("mixture_of_experts.full.expert_parallel.ExpertParallel.synchronize", "self.divisor)", "self.ranks)"),
    by_claim("mixture_of_experts.moe_gpt", "entropy of a step's"),
    # Counts only, which have no gradient: the auxiliary loss does nothing.
    ("mixture_of_experts.full.switch.Switch.route", "(f * p).sum(-1)", "(f * f).sum(-1)"),
    by_claim("mixture_of_experts.moe_gpt", "part of tokens"),
    # The capacity holds in evaluation, and not in training.
    (
        "mixture_of_experts.full.switch.Switch.route",
        "self.capacity_factor if self.training else None",
        "None if self.training else self.capacity_factor",
    ),
    by_claim("mixture_of_experts.z_loss", "z of a token with equal"),
    # Without the square.
    ("mixture_of_experts.z_loss.z_loss", "(z**2)", "z"),
    by_claim("mixture_of_experts.dropless", "tokens without an expert"),
    # A place of each expert stays empty.
    ("mixture_of_experts.switch.route", "position <= capacity", "position < capacity"),
)
