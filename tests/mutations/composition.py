"""Mistakes in the chapter of composition."""

from tests.mutations import Mutation

MUTATIONS: list[Mutation] = []

PLANNING, TRAINER = "minitrain.planning.plan", "minitrain.trainer.trainer"
COSTS = "minitrain.costs"

# Planning and the trainer.
MUTATIONS += [
    Mutation(
        f"{COSTS}.memory.gpt_parameters",
        "gpt_layer_parameters(hidden) + 2 * hidden",
        "gpt_layer_parameters(hidden) + hidden",
        PLANNING,
        "parameters of 175b, whole",
    ),
    Mutation(
        f"{COSTS}.composition.layer_counts",
        "(stage < layers % stages)",
        "(stage >= stages - layers % stages)",
        PLANNING,
        "parameters of each of 10 pipeline stages",
    ),
    Mutation(
        f"{COSTS}.composition._row",
        'Parameter(f"{name}.bias", outputs, whole=True)',
        'Parameter(f"{name}.bias", outputs // tensor, whole=True)',
        PLANNING,
        "parameters of this tensor-parallel rank",
    ),
    Mutation(
        f"{COSTS}.vocabulary.rows", "padded(vocabulary, ranks, multiple)", "vocabulary", PLANNING, "parameters of this"
    ),
    Mutation(f"{COSTS}.composition_work.days_estimate", "8 * tokens", "6 * tokens", PLANNING, "training of GPT-3"),
    Mutation(f"{COSTS}.composition_work.head_work", "2 * batch", "batch", PLANNING, "operations of a step"),
    Mutation(
        f"{COSTS}.composition_work.layer_work",
        '"selective": core',
        '"selective": 3 * core',
        PLANNING,
        "operations of a step",
    ),
    Mutation(
        f"{COSTS}.composition_work.step_seconds",
        "(ranks * per_second)",
        "per_second",
        PLANNING,
        "a step of GPT-3 on 64 A100s",
    ),
    Mutation(
        "minitrain.planning.plan_time.work", "most = own /", "most = done /", PLANNING, "most model FLOP utilisation"
    ),
    Mutation(
        f"{COSTS}.activations.layer_terms",
        'recompute == "selective" and shape == "abss"',
        'recompute == "selective" and cut == "divided"',
        PLANNING,
        "activations of GPT-3",
    ),
    Mutation(
        f"{TRAINER}.Trainer._resume",
        'state.set_steps(self.training.gradients, extra["step"])',
        "pass",
        TRAINER,
        "dp4, interrupted after 2 of 4 steps and resumed: elements",
    ),
    Mutation(
        f"{TRAINER}.Trainer._resume",
        "state.refresh(self.training.gradients)",
        "pass",
        TRAINER,
        "dp4, interrupted after 2 of 4 steps and resumed: elements",
    ),
    Mutation(
        f"{TRAINER}.Trainer._resume",
        'extra["step"], extra["position"]',
        'extra["step"], 0',
        TRAINER,
        "dp4, interrupted after 2 of 4 steps and resumed, or in another layout: samples",
    ),
    Mutation(
        f"{TRAINER}.Trainer._extra",
        '"position": self.position',
        '"position": self.done',
        TRAINER,
        "dp4, interrupted after 2 of 4 steps and resumed, or in another layout: samples",
    ),
    Mutation(
        "minitrain.checkpointing.full.state._add",
        "done += _count(sizes)",
        "done = offset + _count(sizes)",
        TRAINER,
        "dp4, interrupted after 2 of 4 steps and resumed: elements",
    ),
]
