"""Mistakes in the chapter of the mixture of experts."""

from tests.mutations import Mutation

CHAPTER = "minitrain.mixture_of_experts"
FULL = f"{CHAPTER}.full"
THEORY = "minitrain.costs.mixture_of_experts"
SWITCH, GSHARD, NOISY = f"{CHAPTER}.switch", f"{CHAPTER}.gshard", f"{CHAPTER}.noisy_top_k"
CHOICE, LAYER, MOE_GPT = f"{CHAPTER}.expert_choice", f"{CHAPTER}.layer", f"{CHAPTER}.moe_gpt"
BIAS, Z_LOSS = f"{CHAPTER}.bias_balanced", f"{CHAPTER}.z_loss"
DROPLESS, SHARED = f"{CHAPTER}.dropless", f"{CHAPTER}.shared_experts"
LIMITED = f"{CHAPTER}.node_limited"
PARALLEL, ALL_TO_ALL = f"{CHAPTER}.expert_parallel", f"{CHAPTER}.all_to_all"

PLACES = "tokens of an expert that all tokens want"
EIGHT = "loss of the eight tokens"
DROPPED = "part dropped of all choices"
CHOSEN = "small form: choices, gates and losses"
TESTS = "tests/mixture_of_experts"

MUTATIONS = [
    # The practice.
    Mutation(f"{FULL}.router.Router.capacity", "math.floor", "math.ceil", SWITCH, CHOSEN),
    Mutation(f"{FULL}.router.Router.capacity", ".limit_denominator(10**6)", "", SWITCH, CHOSEN),
    Mutation(f"{SWITCH}.route", "experts + 1e-9)", "experts)", SWITCH, PLACES),
    Mutation(f"{SWITCH}.route", "position <= capacity", "position < capacity", SWITCH, CHOSEN),
    Mutation(
        f"{FULL}.switch.Switch.route",
        "(f * p)",
        "(f * p.detach())",
        test=f"{TESTS}/test_routing.py::test_small_form",
        why="the loss is right, and only its gradient is missing",
    ),
    Mutation(f"{FULL}.switch.Switch.route", "(f * p)", "(f * f)", SWITCH, CHOSEN),
    Mutation(f"{SWITCH}.route", "(f * p)", "(p * p)", SWITCH, EIGHT),
    Mutation(
        f"{FULL}.switch.Switch.route",
        "2 * chance - 1",
        "2 * chance",
        test=f"{TESTS}/test_switch.py::test_as_the_paper_says",
        why="the small form has no jitter",
    ),
    Mutation(f"{FULL}.router.Router.split_into_groups", "torch.float32)", "x.dtype)", SWITCH, "tokens of a bfloat16"),
    Mutation(f"{GSHARD}.route", "2 * gate[:, 1] > chance", "gate[:, 1] > chance", GSHARD, CHOSEN),
    Mutation(
        f"{GSHARD}.route", "mask.transpose(0, 1).flatten(0, 1)", "mask.flatten(0, 1)", GSHARD, "places given twice"
    ),
    Mutation(
        f"{FULL}.routing.position_in_expert",
        "taken.transpose(1, 2).reshape",
        "taken.reshape",
        GSHARD,
        CHOSEN,
    ),
    Mutation(f"{FULL}.gshard.GShard.route", "counted * mean", "mean * mean", GSHARD, CHOSEN),
    Mutation(f"{FULL}.noisy_top_k.chances", "best[..., choices:]", "best[..., :1]", NOISY, "distance of smooth load"),
    Mutation(
        f"{FULL}.noisy_top_k.NoisyTopK.noisy",
        "if not self.training",
        "if False",
        test=f"{TESTS}/test_routing.py::test_noise_depends_on_seed_step_and_layer_and_is_off_in_evaluation",
        why="the small form has no evaluation",
    ),
    Mutation(f"{NOISY}.squared_variation", ".mean() ** 2", ".mean()", NOISY, "load loss of the eight tokens"),
    *(
        Mutation(
            f"{FULL}.expert_choice.{symbol}",
            old,
            new,
            test=f"{TESTS}/test_expert_choice.py::test_experts_exchange_tokens_at_the_least_loss",
            why="the lesson's cap is kept, whatever the scores of the tokens that are exchanged",
        )
        for symbol, old, new in (
            ("_exchange", "1e-12 *", "1.0 *"),
            ("within_cap", "_exchange(mine, liking,", "_exchange(mine, 0 * liking,"),
        )
    ),
    Mutation(f"{FULL}.expert_choice.within_cap", "> most).any", "> most + 1).any", CHOICE, "most experts of a token"),
    Mutation(f"{CHOICE}.route", "s.T.topk(k, -1)", "s.T.topk(k, -1, largest=False)", CHOICE, CHOSEN),
    Mutation(f"{LAYER}.MoELayer.choose", ".mean()", ".sum()", LAYER, "distance of output and all gradients"),
    Mutation(
        f"{FULL}.layer._Ride.backward",
        "ctx.scale",
        "1 + ctx.scale",
        test=f"{TESTS}/test_layer.py::test_the_auxiliary_loss_can_ride_along",
        why="in the lesson no loss rides along",
    ),
    Mutation(f"{PARALLEL}.ExpertParallel.synchronize", "1 / self.ranks", "1", PARALLEL, "small form: distance"),
    Mutation(
        f"{FULL}.expert_parallel.experts_of",
        "rank * each + min(rank, more)",
        "rank * each",
        test=f"{TESTS}/test_expert_parallel.py::test_experts_are_shared_out",
        why="the small form, and so the lesson, has equally many experts on each rank",
    ),
    Mutation(
        f"{MOE_GPT}.replace_mlps",
        "range(first + every - 1,",
        "range(0,",
        MOE_GPT,
        "a GPT of five blocks, two with mixtures: parameters",
    ),
    Mutation(f"{BIAS}.route", "score.gather", "(score + bias).gather", BIAS, "largest difference of a gate"),
    Mutation(f"{BIAS}.route", "gates / gates.sum(-1, keepdim=True)", "gates", BIAS, "largest difference of a gate"),
    Mutation(f"{BIAS}.update", "all_reduce(load, group).wait()", "pass", BIAS, "loads and biases after a step"),
    Mutation(f"{BIAS}.update", "experts * load).sign()", "experts * load).sign() * 2", BIAS, "steps until an expert"),
    Mutation(f"{LIMITED}.route", "worth.topk(limit, -1)", "worth.topk(nodes, -1)", LIMITED, "nodes that receive"),
    Mutation(f"{LIMITED}.route", "score.gather", "choose.gather", LIMITED, "no limit, M = N: choices and gates"),
    *(
        Mutation(
            f"{LIMITED}.route",
            "choose.topk(choices // limit",
            new,
            test=f"{TESTS}/test_node_limited.py::test_as_deepseek_has_it",
            why="the lesson counts nodes, of which there are as many whichever a token chooses",
        )
        for new in ("score.unflatten(-1, (nodes, -1)).topk(choices // limit", "choose.topk(1")
    ),
    Mutation(
        f"{LIMITED}.nodes_of",
        "expert // (experts // nodes)",
        "expert % nodes",
        LIMITED,
        ("nodes that receive", "bytes that leave a node with the limit"),
    ),
    Mutation(f"{DROPLESS}.compute", "order // k", "order % len(x)", DROPLESS, "distance of output and all gradients"),
    Mutation(f"{DROPLESS}.compute", "right=True, ", "", DROPLESS, "distance of output and all gradients"),
    Mutation(f"{DROPLESS}.grouped_product", "weight.mT", "weight.mT.flip(0)", DROPLESS, "a grouped product in float32"),
    Mutation(f"{SHARED}.SharedExperts.forward", "y + expert(x)", "expert(x)", SHARED, "distance of the output from"),
    Mutation(
        f"{SHARED}.SharedExperts.forward",
        "in self.shared",
        "in list(self.shared)[:1]",
        SHARED,
        "dropped tokens: distance of their output",
    ),
    Mutation(f"{Z_LOSS}.z_loss", "(z**2).mean()", "(z**2).sum()", Z_LOSS, "z-loss, of random logits"),
    Mutation(f"{Z_LOSS}.z_loss", "logits.logsumexp(-1)", "logits.amax(-1)", Z_LOSS, "largest difference of autograd"),
    Mutation(f"{Z_LOSS}.with_z_loss", "loss + z_loss", "loss + 2 * z_loss", Z_LOSS, "Switch with it"),
    # The theory.
    Mutation(f"{THEORY}.capacity", "/ experts)", "/ experts) - 1", SWITCH, PLACES),
    Mutation(f"{THEORY}.capacity", "/ experts)", "/ experts) + 1", SWITCH, PLACES),
    Mutation(f"{THEORY}.capacity", "math.floor", "round", SWITCH, PLACES),
    Mutation(f"{THEORY}.capacity", "choices * tokens", "tokens", GSHARD, PLACES),
    Mutation(
        f"{THEORY}.dropped_fraction",
        "math.comb(tokens, taken) * choices**taken * (experts - choices) ** (tokens - taken)",
        "experts**tokens * (choices * tokens / experts) ** taken / math.factorial(taken)"
        " * math.exp(-choices * tokens / experts)",
        SWITCH,
        DROPPED,
    ),
    Mutation(f"{THEORY}.dropped_fraction", "chosen = choices * tokens", "chosen = tokens", GSHARD, DROPPED),
    Mutation(f"{THEORY}.switch_loss", "factor * len(parts)", "factor * 8", SWITCH, EIGHT),
    Mutation(f"{THEORY}.gshard_loss_at_balance", "experts**2", "experts", GSHARD, "loss at perfect balance"),
    Mutation(f"{THEORY}.squared_variation", "/ mean**2", "/ mean", NOISY, "load loss of the eight tokens"),
    Mutation(f"{THEORY}.importance_loss_at_worst", "- 1", "", NOISY, "importance loss, k experts used alone"),
    Mutation(f"{THEORY}.all_to_all", "row[rank] for", "row[0] for", ALL_TO_ALL, "all-to-all, backward: bytes"),
    Mutation(f"{THEORY}._sent", "sum(counts) * size", "max(counts) * size", ALL_TO_ALL, "all-to-all, forward: bytes"),
    Mutation(
        f"{THEORY}.expert_parameters", "+ inner + hidden", "+ 2 * hidden", PARALLEL, "small form: bytes of experts"
    ),
    Mutation(f"{THEORY}.expert_flops", "4 * routes", "2 * routes", LAYER, "small form: operations of 5 experts"),
    Mutation(f"{THEORY}.load_bytes", "experts * item", "2 * experts * item", BIAS, "bytes of the all-reduce of loads"),
    Mutation(f"{THEORY}.bias_steps", "(2 * speed)", "speed", BIAS, "steps until an expert"),
    Mutation(f"{THEORY}.bias_overshoot", "2 * speed", "speed", BIAS, "most tokens of an expert from then on"),
    Mutation(f"{THEORY}.nodes_of_a_token", "experts // nodes", "nodes", LIMITED, "bytes that leave this node"),
    Mutation(f"{THEORY}.node_bytes", "(nodes - 1) / nodes * ", "", LIMITED, "bytes that leave this node"),
    Mutation(f"{THEORY}.shared_parameters", "(experts + shared)", "experts", SHARED, "parameters, of whole experts"),
    Mutation(f"{THEORY}.shared_flops", "choices + shared", "choices", SHARED, "operations of both"),
    Mutation(f"{THEORY}.z_loss", "/ len(logits)", "", Z_LOSS, "z-loss, of random logits"),
    Mutation(f"{THEORY}.z_loss_gradient", "2 * z", "z", Z_LOSS, "largest difference of autograd"),
    Mutation(f"{THEORY}.router_flops", "2 * tokens", "tokens", LAYER, "small form: operations of 10 experts"),
]
