"""Mistakes in the chapter of composition."""

from tests.mutations import Mutation

CHAPTER, THEORY = "minitrain.composition", "minitrain.costs.composition"
GRADIENTS, LAYOUT, MODEL, STEP = (f"{CHAPTER}.{name}" for name in ("gradients", "layout", "model", "step"))
MIXTURE = "minitrain.mixture_of_experts.full"
DRY_RUN = "tests/composition/test_predicted.py::test_a_step_is_what_the_dry_run_predicts"
OTHER_AXES = "of what the dry run predicts, the lesson claims operations and what goes along pp"
APART, REPORTS = "gradients of this rank's shards", "loss and norm, distance"

MUTATIONS = [
    # Practice.
    Mutation(f"{GRADIENTS}.Replicated._average", "1 / self.sharers.ranks", "1", GRADIENTS, APART),
    Mutation(f"{GRADIENTS}.Gradients._sum_partial", "sum_partial(pairs, self._tp)", "pass", GRADIENTS, APART),
    Mutation(f"{GRADIENTS}.Gradients.squares", "if self.spread[name].first]", "if True]", GRADIENTS, REPORTS),
    Mutation(
        f"{STEP}.Training.share_of_mean",
        " / (self.settings.layout.dp * self.settings.layout.cp)",
        "",
        GRADIENTS,
        REPORTS,
    ),
    Mutation(f"{STEP}.Training.share_of_mean", 'self.axes.place["tp"]', "False", GRADIENTS, REPORTS),
    Mutation(
        f"{MODEL}.make_router",
        "if value is not None",
        'if value and option == "choices"',
        test="tests/composition/test_step.py::test_options_of_routers[top_k-option2]",
        why="one device makes the same routers",
    ),
    Mutation(
        "minitrain.models.gpt.MLP.mix",
        '"tanh"',
        '"none"',
        test="tests/models/test_gpt.py::test_block_equals_torchs_layer",
        why="one device and the ranks run the same MLP",
    ),
    Mutation(
        f"{MIXTURE}.compute.stacked",
        'name == "down" and not getattr(experts[0], "adds_bias", True)',
        "False",
        STEP,
        "losses, norms and weights",
    ),
    Mutation(
        f"{MIXTURE}.layer.MoELayer.combine",
        "copy_to_parallel(routing.weight, self.tensor)",
        "routing.weight",
        STEP,
        "losses, norms and weights",
    ),
    Mutation(
        f"{MIXTURE}.layer.MoELayer.forward",
        "if self.tensor is not None and not self.sequence:",
        "if False:",
        STEP,
        "losses, norms and weights",
    ),
    Mutation(f"{THEORY}_sent.tensor_payload", "rows * max(4, item)", "0 * item", test=DRY_RUN, why=OTHER_AXES),
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
    Mutation(f"{MODEL}.materialize", "del made", "pass", MODEL, "bytes at most"),
    Mutation(
        f"{CHAPTER}.optimizer.learning_rate",
        "schedules.cosine(number, steps.steps, ",
        "schedules.constant(number, ",
        test="tests/composition/test_step.py::test_learning_rates_are_those_of_torch_s_schedulers",
        why="the lesson's one device takes the same learning rates",
    ),
    Mutation(f"{GRADIENTS}.Gradients._divide_experts", "1 / self.axes.layout.ep", "1.0", STEP, "losses, norms and"),
    Mutation(f"{GRADIENTS}.Gradients.__init__", "(shared, axes.dp_cp)", "(shared, axes.dp)", STEP, "losses, norms and"),
    Mutation(
        f"{STEP}.Training.own_tokens", "take(inputs, targets,", "take(targets, inputs,", STEP, "losses, norms and"
    ),
    Mutation(f"{LAYOUT}.make_axes", "grid.permute(0, 3, 1, 2)", "grid.permute(0, 1, 3, 2)", STEP, "losses, norms and"),
    Mutation(
        f"{CHAPTER}.ordered_sums.OrderedSums._sum",
        "rows[1:]",
        "rows[1:].flip(0)",
        test="tests/trainer/test_ordered_sums.py",
        why="no claim is about ordered sums",
    ),
    # Theory.
    Mutation(f"{THEORY}_sent.ordered_sent", "rank * padded // data", "padded", test=DRY_RUN, why=OTHER_AXES),
    Mutation(f"{THEORY}._row", "outputs, whole=True", "outputs // tensor", MODEL, "bytes of this rank's part"),
    Mutation(
        f"{THEORY}.layer_counts", "stage < layers % stages", "stage > layers % stages", MODEL, "bytes of this rank's"
    ),
    Mutation(f"{THEORY}.model_parameters", "shape.experts if", "1 if", LAYOUT, "elements that count in a norm"),
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
    Mutation(f"{THEORY}_sent.tensor_payload", "inside + first + last", "inside + first", test=DRY_RUN, why=OTHER_AXES),
    Mutation(f"{THEORY}_sent.context_payload", "(context - 1) * 2", "context * 2", test=DRY_RUN, why=OTHER_AXES),
    Mutation(f"{THEORY}_sent.data_payload", "2 * microbatches)}", "microbatches)}", test=DRY_RUN, why=OTHER_AXES),
    Mutation(f"{THEORY}_kept.peak_kept", '"BW"', '"W"', test=DRY_RUN, why=OTHER_AXES),
]

PLANNING, TRAINER = "minitrain.planning.plan", "minitrain.trainer.trainer"
COSTS = "minitrain.costs"
LARGE = "the demo counts on the ranks that run it"

# Planning and the trainer.
MUTATIONS += [
    Mutation(
        f"{COSTS}.composition._norm",
        'if shape.rms else ("weight", "bias")',
        "",
        PLANNING,
        "parameters of 175b, whole",
    ),
    Mutation(
        f"{COSTS}.composition.layer_counts",
        "(stage < layers % stages)",
        "(stage >= stages - layers % stages)",
        test="tests/costs/test_composition.py::test_layers_of_stages_by_hand",
        why=LARGE,
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
    Mutation(
        f"{COSTS}.composition_work.days_estimate",
        "8 * tokens",
        "6 * tokens",
        test="tests/costs/test_composition.py::test_published_days",
        why=LARGE,
    ),
    Mutation(f"{COSTS}.composition_work.head_work", "2 * tokens", "tokens", PLANNING, "operations of a step"),
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
        test="tests/costs/test_composition.py::test_published_days",
        why=LARGE,
    ),
    Mutation(
        "minitrain.planning.full.plan_time.most_utilization",
        ".model / (",
        ".done / (",
        test="tests/planning/test_plan.py::test_work_of_gpt_3",
        why="the demo counts all operations",
    ),
    Mutation(
        f"{COSTS}.activations.layer_terms",
        'recompute == "selective" and shape == "abss"',
        'recompute == "selective" and cut == "divided"',
        test="tests/costs/test_activations.py::test_selective_recomputation_saves_what_section_5_says",
        why=LARGE,
    ),
    Mutation(
        "minitrain.trainer.saving.Saving._go_on",
        'state.set_steps(training.gradients, extra["step"] - trainer.skipped)',
        "pass",
        TRAINER,
        "dp4, interrupted after 3 of 4 steps and resumed: elements",
    ),
    Mutation(
        "minitrain.trainer.saving.Saving._go_on",
        "state.refresh(training.gradients)",
        "pass",
        TRAINER,
        "dp4, interrupted after 3 of 4 steps and resumed: elements",
    ),
    Mutation(
        "minitrain.trainer.saving.Saving._go_on",
        'extra["step"], extra["position"]',
        'extra["step"], 0',
        TRAINER,
        "dp4, interrupted after 3 of 4 steps and resumed: elements",
    ),
    Mutation(
        "minitrain.trainer.saving.Saving._extra",
        '"position": trainer.position',
        '"position": trainer.done',
        TRAINER,
        "dp4, interrupted after 3 of 4 steps and resumed: elements",
    ),
    Mutation(
        "minitrain.checkpointing.full.state._add",
        "done += math.prod(sizes)",
        "pass",
        TRAINER,
        "dp4, interrupted after 3 of 4 steps and resumed: elements",
    ),
    Mutation(
        "minitrain.composition.step.step_or_skip",
        "factor / scale.scale",
        "factor",
        test="tests/trainer/test_float16.py",
        why="no demo trains in float16",
    ),
    Mutation(
        "minitrain.composition.step.step_or_skip",
        "scale.overflow = not math.isfinite(report.norm)",
        "scale.overflow = False",
        test="tests/trainer/test_float16.py",
        why="no demo trains in float16",
    ),
    Mutation(
        f"{THEORY}.stage_parameters",
        "[positions] if shape.learned else []",
        "[positions]",
        test=DRY_RUN,
        why=OTHER_AXES,
    ),
    Mutation("minitrain.costs.composition_kept.layer_kept", "seq * 3 *", "seq * 2 *", test=DRY_RUN, why=OTHER_AXES),
    Mutation(f"{THEORY}_sent.partial_payload", "each.partial or int", "int", test=DRY_RUN, why=OTHER_AXES),
    Mutation(f"{THEORY}_sent.context_payload", "tokens * copies *", "tokens * heads *", test=DRY_RUN, why=OTHER_AXES),
    Mutation(
        f"{THEORY}_kept.layer_kept",
        "3 if shape.gated",
        "2 if shape.gated",
        test="tests/costs/test_composition.py::test_a_module_has_what_is_counted",
        why=OTHER_AXES,
    ),
    Mutation(
        f"{THEORY}.Shape.is_mixture",
        "layer >= self.dense_first",
        "True",
        test="tests/costs/test_composition.py::test_released_weights_have_as_many_parameters",
        why=LARGE,
    ),
    *(
        Mutation(
            f"minitrain.models.rotary.{where}",
            old,
            new,
            test="tests/models/test_rope.py",
            why="every layout is compared with one device, which has the same mistake",
        )
        for where, old, new in (
            ("turn", "halves.flip(-2)", "halves"),
            ("Rotary.forward", "-2 * pairs / head", "-pairs / head"),
            ("Rotary.forward", "dtype = torch.promote_types(query.dtype, torch.float32)", "dtype = query.dtype"),
        )
    ),
]
