"""Mistakes in the chapter of composition."""

OTHER_AXES = "of what the dry run predicts, the lesson claims operations and what goes along pp"
LARGE = "the demo counts on the ranks that run it"

FOUND_BY = {
    ("composition.gradients", "gradients of this rank's shards"): [
        ("composition.gradients.Replicated._average", "1 / self.sharers.ranks", "1"),
        ("composition.gradients.Gradients._sum_partial", "sum_partial(pairs, self._tp)", "pass"),
    ],
    ("composition.gradients", "loss and norm, distance"): [
        ("composition.gradients.Gradients.squares", "if self.spread[name].first]", "if True]"),
        ("composition.step.Training.share_of_mean", " / (self.settings.layout.dp * self.settings.layout.cp)", ""),
        ("composition.step.Training.share_of_mean", 'self.axes.place["tp"]', "False"),
    ],
    ("tests/models/test_gpt.py::test_block_equals_torchs_layer", "one device and the ranks run the same MLP"): [
        ("models.gpt.MLP.mix", '"tanh"', '"none"'),
    ],
    ("composition.step", "losses, norms and weights"): [
        (
            "mixture_of_experts.full.compute.stacked",
            'name == "down" and not getattr(experts[0], "adds_bias", True)',
            "False",
        ),
        (
            "mixture_of_experts.full.layer.MoELayer.combine",
            "copy_to_parallel(routing.weight, self.tensor)",
            "routing.weight",
        ),
        ("mixture_of_experts.full.layer.MoELayer.forward", "self.tensor is not None and not self.sequence:", "False:"),
    ],
    ("tests/composition/test_predicted.py::test_a_step_is_what_the_dry_run_predicts", OTHER_AXES): [
        ("costs.composition_sent.tensor_payload", "rows * max(4, item)", "0 * item"),
        ("costs.composition_sent.ordered_sent", "rank * padded // data", "padded"),
        ("costs.composition_sent.tensor_payload", "inside + first + last", "inside + first"),
        ("costs.composition_sent.context_payload", "(context - 1) * 2", "context * 2"),
        ("costs.composition_sent.data_payload", "2 * microbatches)}", "microbatches)}"),
        ("costs.composition_kept.peak_kept", '"BW"', '"W"'),
        ("costs.composition.stage_parameters", "[positions] if shape.learned else []", "[positions]"),
        ("costs.composition_kept.layer_kept", "seq * 3 *", "seq * 2 *"),
        ("costs.composition_sent.partial_payload", "each.partial or int", "int"),
        ("costs.composition_sent.context_payload", "tokens * copies *", "tokens * heads *"),
    ],
    ("composition.layout", "of a group's ranks"): [
        (
            "composition.layout.make_axes",
            'place["replicas"] * layout.ep + place["experts"]',
            'place["experts"] * layout.ep + place["replicas"]',
        ),
    ],
    ("composition.layout", "elements that count in a norm"): [
        ("composition.layout.spread_of", 'len(stages) < 2 or axes.place["pp"] == stages[0]', "True"),
        ("costs.composition.model_parameters", "shape.experts if", "1 if"),
    ],
    ("composition.layout", "parameters whose elements"): [
        ("composition.layout.spread_of", "1 if layout.zero else sharers", "sharers"),
    ],
    ("composition.model", "initial values"): [
        ("composition.model.initial_value", "initial_weight(name, shape, layers", "initial_weight(name, shape, 1"),
    ],
    ("composition.model", "bytes at most"): [
        ("composition.model._give_memory", "module.to_empty(device=device)", "module.to_empty(device=device).double()"),
        ("composition.model.materialize", "del made", "pass"),
    ],
    (
        "tests/composition/test_step.py::test_learning_rates_are_those_of_torch_s_schedulers",
        "the lesson's one device takes the same learning rates",
    ): [
        ("composition.optimizer.learning_rate", "schedules.cosine(number, steps.steps,", "schedules.constant(number,"),
    ],
    ("composition.step", "losses, norms and"): [
        ("composition.gradients.Gradients._divide_experts", "1 / self.axes.layout.ep", "1.0"),
        ("composition.gradients.Gradients.__init__", "(shared, axes.dp_cp)", "(shared, axes.dp)"),
        ("composition.step.Training.own_tokens", "take(inputs, targets,", "take(targets, inputs,"),
        ("composition.layout.make_axes", "grid.permute(0, 3, 1, 2)", "grid.permute(0, 1, 3, 2)"),
    ],
    ("tests/trainer/test_ordered_sums.py", "no claim is about ordered sums"): [
        ("composition.ordered_sums.OrderedSums._sum", "rows[1:]", "rows[1:].flip(0)"),
    ],
    ("composition.model", "bytes of this rank's part"): [
        ("costs.composition._row", "outputs, whole=True", "outputs // tensor"),
    ],
    ("composition.model", "bytes of this rank's"): [
        ("costs.composition.layer_counts", "stage < layers % stages", "stage > layers % stages"),
    ],
    ("composition.step", "operations of a step on this rank"): [
        ("costs.composition_work.layer_work", "2 * core", "core"),
    ],
    ("composition.step", "operations of a step"): [
        ("costs.composition_work.head_work", "vocabulary.rows(shape.vocabulary, tensor)", "shape.vocabulary // tensor"),
    ],
    ("composition.step", "payload of a step along pp"): [
        ("costs.composition_sent.pipeline_sent", "zip(placement, placement[1:]", "zip(placement[1:], placement[2:]"),
    ],
    ("planning.plan", "parameters of 175b, whole"): [
        ("costs.composition._norm", 'if shape.rms else ("weight", "bias")', ""),
    ],
    ("tests/costs/test_composition.py::test_layers_of_stages_by_hand", LARGE): [
        ("costs.composition.layer_counts", "(stage < layers % stages)", "(stage >= stages - layers % stages)"),
    ],
    ("planning.plan", "parameters of this tensor-parallel rank"): [
        ("costs.composition._row", '{name}.bias", outputs, whole=True', '{name}.bias", outputs // tensor, whole=True'),
    ],
    ("planning.plan", "parameters of this"): [
        ("costs.vocabulary.rows", "padded(vocabulary, ranks, multiple)", "vocabulary"),
    ],
    ("tests/costs/test_composition.py::test_published_days", LARGE): [
        ("costs.composition_work.days_estimate", "8 * tokens", "6 * tokens"),
        ("costs.composition_work.step_seconds", "(ranks * per_second)", "per_second"),
    ],
    ("planning.plan", "operations of a step"): [
        ("costs.composition_work.head_work", "2 * tokens", "tokens"),
        ("costs.composition_work.layer_work", '"selective": core', '"selective": 3 * core'),
    ],
    ("tests/planning/test_plan.py::test_work_of_gpt_3", "the demo counts all operations"): [
        ("planning.full.plan_time.most_utilization", ".model / (", ".done / ("),
    ],
    ("tests/costs/test_activations.py::test_selective_recomputation_saves_what_section_5_says", LARGE): [
        ("costs.activations.layer_terms", '== "selective" and shape == "abss"', '== "selective" and cut == "divided"'),
    ],
    ("trainer.trainer", "dp4, interrupted after 3 of 4 steps and resumed: elements"): [
        (
            "trainer.saving.Saving._go_on",
            'state.set_steps(training.gradients, extra["step"] - trainer.skipped)',
            "pass",
        ),
        ("trainer.saving.Saving._go_on", "state.refresh(training.gradients)", "pass"),
        ("trainer.saving.Saving._go_on", 'extra["step"], extra["position"]', 'extra["step"], 0'),
        ("trainer.saving.Saving._extra", '"position": trainer.position', '"position": trainer.done'),
        ("checkpointing.full.state._add", "done += math.prod(sizes)", "pass"),
    ],
    ("tests/trainer/test_float16.py", "no demo trains in float16"): [
        ("composition.step.step_or_skip", "factor / scale.scale", "factor"),
        ("composition.step.step_or_skip", "scale.overflow = not math.isfinite(report.norm)", "scale.overflow = False"),
    ],
    ("tests/costs/test_composition.py::test_a_module_has_what_is_counted", OTHER_AXES): [
        ("costs.composition_kept.layer_kept", "3 if shape.gated", "2 if shape.gated"),
    ],
    ("tests/costs/test_composition.py::test_released_weights_have_as_many_parameters", LARGE): [
        ("costs.composition.Shape.is_mixture", "layer >= self.dense_first", "True"),
    ],
    ("tests/models/test_rope.py", "every layout is compared with one device, which has the same mistake"): [
        ("models.rotary.turn", "halves.flip(-2)", "halves"),
        ("models.rotary.Rotary.forward", "-2 * pairs / head", "-pairs / head"),
        ("models.rotary.Rotary.forward", "= torch.promote_types(query.dtype, torch.float32)", "= query.dtype"),
    ],
}
