"""Mistakes in the chapter of the mixture of experts."""

FOUND_BY = {
    ("mixture_of_experts.switch", "small form: choices, gates and losses"): [
        ("mixture_of_experts.full.router.Router.capacity", "math.floor", "math.ceil"),
        ("mixture_of_experts.full.router.Router.capacity", ".limit_denominator(10**6)", ""),
        ("mixture_of_experts.switch.route", "position <= capacity", "position < capacity"),
        ("mixture_of_experts.full.switch.Switch.route", "(f * p)", "(f * f)"),
    ],
    ("mixture_of_experts.switch", "tokens of an expert that all tokens want"): [
        ("mixture_of_experts.switch.route", "experts + 1e-9)", "experts)"),
        ("costs.mixture_of_experts.capacity", "/ experts)", "/ experts) - 1"),
        ("costs.mixture_of_experts.capacity", "/ experts)", "/ experts) + 1"),
        ("costs.mixture_of_experts.capacity", "math.floor", "round"),
    ],
    (
        "tests/mixture_of_experts/test_routing.py::test_small_form",
        "the loss is right, and only its gradient is missing",
    ): [
        ("mixture_of_experts.full.switch.Switch.route", "(f * p)", "(f * p.detach())"),
    ],
    ("mixture_of_experts.switch", "loss of the eight tokens"): [
        ("mixture_of_experts.switch.route", "(f * p)", "(p * p)"),
        ("costs.mixture_of_experts.switch_loss", "factor * len(parts)", "factor * 8"),
    ],
    ("tests/mixture_of_experts/test_switch.py::test_as_the_paper_says", "the small form has no jitter"): [
        ("mixture_of_experts.full.switch.Switch.route", "2 * chance - 1", "2 * chance"),
    ],
    ("mixture_of_experts.switch", "tokens of a bfloat16"): [
        ("mixture_of_experts.full.router.Router.split_into_groups", "torch.float32)", "x.dtype)"),
    ],
    ("mixture_of_experts.gshard", "small form: choices, gates and losses"): [
        ("mixture_of_experts.gshard.route", "2 * gate[:, 1] > chance", "gate[:, 1] > chance"),
        ("mixture_of_experts.full.routing.position_in_expert", "taken.transpose(1, 2).reshape", "taken.reshape"),
        ("mixture_of_experts.full.gshard.GShard.route", "counted * mean", "mean * mean"),
    ],
    ("mixture_of_experts.gshard", "places given twice"): [
        ("mixture_of_experts.gshard.route", "mask.transpose(0, 1).flatten(0, 1)", "mask.flatten(0, 1)"),
    ],
    ("mixture_of_experts.noisy_top_k", "distance of smooth load"): [
        ("mixture_of_experts.full.noisy_top_k.chances", "best[..., choices:]", "best[..., :1]"),
    ],
    (
        "tests/mixture_of_experts/test_routing.py::test_noise_depends_on_seed_step_and_layer_and_is_off_in_evaluation",
        "the small form has no evaluation",
    ): [
        ("mixture_of_experts.full.noisy_top_k.NoisyTopK.noisy", "if not self.training", "if False"),
    ],
    ("mixture_of_experts.noisy_top_k", "load loss of the eight tokens"): [
        ("mixture_of_experts.noisy_top_k.squared_variation", ".mean() ** 2", ".mean()"),
        ("costs.mixture_of_experts.squared_variation", "/ mean**2", "/ mean"),
    ],
    (
        "tests/mixture_of_experts/test_expert_choice.py::test_the_cap_finds_what_the_dual_finds",
        "experts exchange tokens until the cap is kept, whatever A is",
    ): [
        ("mixture_of_experts.full.expert_choice.uncut", "a = a + column", "pass"),
        ("mixture_of_experts.full.expert_choice.uncut", "a = a + entry", "pass"),
    ],
    ("mixture_of_experts.expert_choice", "most experts of a token"): [
        ("mixture_of_experts.full.expert_choice.within_cap", "> most).any", "> most + 1).any"),
    ],
    ("mixture_of_experts.expert_choice", "small form: choices, gates and losses"): [
        ("mixture_of_experts.expert_choice.route", "s.T.topk(k, -1)", "s.T.topk(k, -1, largest=False)"),
    ],
    ("mixture_of_experts.layer", "distance of output and all gradients"): [
        ("mixture_of_experts.layer.MoELayer.choose", ".mean()", ".sum()"),
    ],
    (
        "tests/mixture_of_experts/test_layer.py::test_the_auxiliary_loss_can_ride_along",
        "in the lesson no loss rides along",
    ): [
        ("mixture_of_experts.full.layer._Ride.backward", "ctx.scale", "1 + ctx.scale"),
    ],
    ("mixture_of_experts.expert_parallel", "small form: distance"): [
        ("mixture_of_experts.expert_parallel.ExpertParallel.synchronize", "1 / self.ranks", "1"),
    ],
    (
        "tests/mixture_of_experts/test_expert_parallel.py::test_experts_are_shared_out",
        "the small form, and so the lesson, has equally many experts on each rank",
    ): [
        ("mixture_of_experts.full.expert_parallel.experts_of", "rank * each + min(rank, more)", "rank * each"),
    ],
    ("mixture_of_experts.moe_gpt", "a GPT of five blocks, two with mixtures: parameters"): [
        ("mixture_of_experts.moe_gpt.replace_mlps", "range(first + every - 1,", "range(0,"),
    ],
    ("mixture_of_experts.bias_balanced", "largest difference of a gate"): [
        ("mixture_of_experts.bias_balanced.route", "score.gather", "(score + bias).gather"),
        ("mixture_of_experts.bias_balanced.route", "gates / gates.sum(-1, keepdim=True)", "gates"),
    ],
    ("mixture_of_experts.bias_balanced", "loads and biases after a step"): [
        ("mixture_of_experts.bias_balanced.update", "all_reduce(load, group).wait()", "pass"),
    ],
    ("mixture_of_experts.bias_balanced", "steps until an expert"): [
        ("mixture_of_experts.bias_balanced.update", "experts * load).sign()", "experts * load).sign() * 2"),
        ("costs.mixture_of_experts.bias_steps", "(2 * speed)", "speed"),
    ],
    ("mixture_of_experts.node_limited", "nodes that receive"): [
        ("mixture_of_experts.node_limited.route", "worth.topk(limit, -1)", "worth.topk(nodes, -1)"),
    ],
    ("mixture_of_experts.node_limited", "no limit, M = N: choices and gates"): [
        ("mixture_of_experts.node_limited.route", "score.gather", "choose.gather"),
    ],
    (
        "tests/mixture_of_experts/test_node_limited.py::test_as_deepseek_has_it",
        "the lesson counts nodes, of which there are as many whichever a token chooses",
    ): [
        (
            "mixture_of_experts.node_limited.route",
            "choose.topk(choices // limit",
            "score.unflatten(-1, (nodes, -1)).topk(choices // limit",
        ),
        ("mixture_of_experts.node_limited.route", "choose.topk(choices // limit", "choose.topk(1"),
    ],
    ("mixture_of_experts.node_limited", "nodes that receive", "bytes that leave a node with the limit"): [
        ("mixture_of_experts.node_limited.nodes_of", "expert // (experts // nodes)", "expert % nodes"),
    ],
    ("mixture_of_experts.dropless", "distance of output and all gradients"): [
        ("mixture_of_experts.dropless.compute", "order // k", "order % len(x)"),
        ("mixture_of_experts.dropless.compute", "right=True, ", ""),
    ],
    ("mixture_of_experts.dropless", "a grouped product in float32"): [
        ("mixture_of_experts.dropless.grouped_product", "weight.mT", "weight.mT.flip(0)"),
    ],
    ("mixture_of_experts.shared_experts", "distance of the output from"): [
        ("mixture_of_experts.shared_experts.SharedExperts.forward", "y + expert(x)", "expert(x)"),
    ],
    ("mixture_of_experts.shared_experts", "dropped tokens: distance of their output"): [
        ("mixture_of_experts.shared_experts.SharedExperts.forward", "in self.shared", "in list(self.shared)[:1]"),
    ],
    ("mixture_of_experts.z_loss", "z-loss, of random logits"): [
        ("mixture_of_experts.z_loss.z_loss", "(z**2).mean()", "(z**2).sum()"),
        ("costs.mixture_of_experts.z_loss", "/ len(logits)", ""),
    ],
    ("mixture_of_experts.z_loss", "largest difference of autograd"): [
        ("mixture_of_experts.z_loss.z_loss", "logits.logsumexp(-1)", "logits.amax(-1)"),
        ("costs.mixture_of_experts.z_loss_gradient", "2 * z", "z"),
    ],
    ("mixture_of_experts.z_loss", "Switch with it"): [
        ("mixture_of_experts.z_loss.with_z_loss", "loss + z_loss", "loss + 2 * z_loss"),
    ],
    ("mixture_of_experts.gshard", "tokens of an expert that all tokens want"): [
        ("costs.mixture_of_experts.capacity", "choices * tokens", "tokens"),
    ],
    ("mixture_of_experts.switch", "part dropped of all choices"): [
        (
            "costs.mixture_of_experts.dropped_fraction",
            "math.comb(tokens, taken) * choices**taken * (experts - choices) ** (tokens - taken)",
            "experts**tokens * (choices * tokens / experts) ** taken / math.factorial(taken)"
            " * math.exp(-choices * tokens / experts)",
        ),
    ],
    ("mixture_of_experts.gshard", "part dropped of all choices"): [
        ("costs.mixture_of_experts.dropped_fraction", "chosen = choices * tokens", "chosen = tokens"),
    ],
    ("mixture_of_experts.gshard", "loss at perfect balance"): [
        ("costs.mixture_of_experts.gshard_loss_at_balance", "experts**2", "experts"),
    ],
    ("mixture_of_experts.noisy_top_k", "importance loss, k experts used alone"): [
        ("costs.mixture_of_experts.importance_loss_at_worst", "- 1", ""),
    ],
    ("mixture_of_experts.all_to_all", "all-to-all, backward: bytes"): [
        ("costs.mixture_of_experts.all_to_all", "row[rank] for", "row[0] for"),
    ],
    ("mixture_of_experts.all_to_all", "all-to-all, forward: bytes"): [
        ("costs.mixture_of_experts._sent", "sum(counts) * size", "max(counts) * size"),
    ],
    ("mixture_of_experts.expert_parallel", "small form: bytes of experts"): [
        ("costs.mixture_of_experts.expert_parameters", "+ inner + hidden", "+ 2 * hidden"),
    ],
    ("mixture_of_experts.layer", "small form: operations of 5 experts"): [
        ("costs.mixture_of_experts.expert_flops", "4 * routes", "2 * routes"),
    ],
    ("mixture_of_experts.bias_balanced", "bytes of the all-reduce of loads"): [
        ("costs.mixture_of_experts.load_bytes", "experts * item", "2 * experts * item"),
    ],
    ("mixture_of_experts.bias_balanced", "most tokens of an expert from then on"): [
        ("costs.mixture_of_experts.bias_overshoot", "2 * speed", "speed"),
    ],
    ("mixture_of_experts.node_limited", "bytes that leave this node"): [
        ("costs.mixture_of_experts.nodes_of_a_token", "experts // nodes", "nodes"),
        ("costs.mixture_of_experts.node_bytes", "(nodes - 1) / nodes * ", ""),
    ],
    ("mixture_of_experts.shared_experts", "parameters, of whole experts"): [
        ("costs.mixture_of_experts.shared_parameters", "(experts + shared)", "experts"),
    ],
    ("mixture_of_experts.shared_experts", "operations of both"): [
        ("costs.mixture_of_experts.shared_flops", "choices + shared", "choices"),
    ],
    ("mixture_of_experts.layer", "small form: operations of 10 experts"): [
        ("costs.mixture_of_experts.router_flops", "2 * tokens", "tokens"),
    ],
}
