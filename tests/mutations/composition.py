"""Mistakes in the chapter of composition."""

from tests.mutations import Mutation

CHAPTER, THEORY = "minitrain.composition", "minitrain.costs.composition"
GRADIENTS, LAYOUT, MODEL, STEP = (f"{CHAPTER}.{name}" for name in ("gradients", "layout", "model", "step"))
APART, REPORTS = "gradients of this rank's shards", "loss and norm, distance"

MUTATIONS = [
    # Practice.
    Mutation(f"{GRADIENTS}.Replicated._average", "1 / self.sharers.ranks", "1", GRADIENTS, APART),
    Mutation(f"{GRADIENTS}.Gradients._sum_partial", "piece.copy_(summed)", "piece.copy_(piece)", GRADIENTS, APART),
    Mutation(f"{GRADIENTS}.Gradients.squares", "if self.spread[name].first:", "if True:", GRADIENTS, REPORTS),
    Mutation(f"{STEP}.Training.share_of_mean", " / self.settings.layout.dp", "", GRADIENTS, REPORTS),
    Mutation(f"{STEP}.Training.share_of_mean", 'self.axes.place["tp"]', "False", GRADIENTS, REPORTS),
    Mutation("minitrain.models.gpt.MLP.forward", '"tanh"', '"none"', GRADIENTS, "one device's gradients"),
    Mutation(
        f"{LAYOUT}.make_axes",
        'place["replicas"] * layout.ep + place["experts"]',
        'place["experts"] * layout.ep + place["replicas"]',
        LAYOUT,
        "of a group's ranks",
    ),
    Mutation(
        f"{LAYOUT}.spread_of",
        'len(stages) < 2 or axes.place["pp"] == stages[0]',
        "True",
        LAYOUT,
        "elements that count in a norm",
    ),
    Mutation(f"{LAYOUT}.spread_of", "1 if layout.zero else sharers", "sharers", LAYOUT, "parameters whose elements"),
    Mutation(
        f"{MODEL}.initial_value",
        "initial_weight(name, shape, layers",
        "initial_weight(name, shape, 1",
        MODEL,
        "initial values",
    ),
    Mutation(
        f"{MODEL}._give_memory",
        "module.to_empty(device=device)",
        "module.to_empty(device=device).double()",
        MODEL,
        "bytes at most",
    ),
    Mutation(f"{CHAPTER}.optimizer.learning_rate", "0.1 + 0.9 *", "1.0 *", STEP, "learning rates of a run"),
    Mutation(f"{GRADIENTS}.Gradients._divide_experts", "1 / self.axes.layout.ep", "1.0", STEP, "losses, norms and"),
    # Theory.
    Mutation(f"{THEORY}._row", "outputs, whole=True", "outputs // tensor", MODEL, "bytes of this rank's part"),
    Mutation(
        f"{THEORY}.layer_counts", "stage < layers % stages", "stage > layers % stages", MODEL, "bytes of this rank's"
    ),
    Mutation(
        f"{THEORY}.model_parameters", "shape.experts - 1", "shape.experts", LAYOUT, "elements that count in a norm"
    ),
    Mutation(f"{THEORY}_work.layer_work", "2 * core", "core", STEP, "operations of a step on this rank"),
    Mutation(
        f"{THEORY}_work.head_work",
        "vocabulary.rows(shape.vocabulary, tensor)",
        "shape.vocabulary // tensor",
        STEP,
        "operations of a step",
    ),
    Mutation(
        f"{THEORY}_sent.pipeline_sent",
        "zip(placement, placement[1:]",
        "zip(placement[1:], placement[2:]",
        STEP,
        "payload of a step along pp",
    ),
    Mutation(
        f"{THEORY}_sent.tensor_payload", "inside + first + last", "inside + first", STEP, "payload of a step along tp"
    ),
    Mutation(f"{THEORY}_sent.data_payload", "2 * microbatches)}", "microbatches)}", STEP, "payload of a step along dp"),
    Mutation(f"{THEORY}_kept.peak_kept", '"BW"', '"W"', STEP, "bytes kept for backward"),
]
