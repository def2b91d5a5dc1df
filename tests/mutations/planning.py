"""Mistakes in the chapter of planning: in its small forms, the search, its lower bound, and the model of time."""

FILE = "the demo writes no file"
PAGE = "the calculator's page shows it, and no demo"

FOUND_BY = {
    ("planning.profile", "bytes that each layer"): [
        ("planning.profile.measure", "y.nbytes, weight)", "x.nbytes, weight)"),
    ],
    ("planning.profile", "bytes of each layer's weights"): [
        ("planning.profile.measure", "())\n        profile", "() if parameter.dim() > 1)\n        profile"),
    ],
    ("tests/planning/test_profile.py::test_times_are_those_of_each_layer", "seconds on this machine are no claim"): [
        ("planning.profile.measure", "range(repeats + 1)", "range(repeats)"),
        ("planning.profile.measure", "leaves and y.requires_grad:", "leaves and y.requires_grad and len(times) < 2:"),
    ],
    ("tests/planning/test_profile.py::test_a_file_keeps_every_digit", FILE): [
        ("planning.profile.write", "{forward!r}", "{forward:.3f}"),
    ],
    ("tests/planning/test_profile.py::test_files_that_lack_something", FILE): [
        ("planning.profile.read", "assert not missing", "assert missing or not missing"),
    ],
    ("planning.partition", "slowest stages of 84 chains"): [
        ("planning.partition.partition", "max(best[s][0], messages[s - 1],", "max(messages[s - 1],"),
        ("planning.partition.partition", "min(ways)", "max(ways)"),
        ("planning.partition.partition", "range(2, p + 1)", "range(2, p)"),
        ("costs.planning.best_cut", "return min(found)", "return max(found)"),
        ("costs.planning.compositions", "range(1, total)", "range(1, total - 1)"),
    ],
    ("planning.partition", "time between minibatches at the end"): [
        ("planning.partition.partition", "messages[s - 1]", "messages[s]"),
        ("costs.planning.best_cut", "messages[begin - 1]", "messages[begin]"),
    ],
    ("planning.pipedream_planner", "time per minibatch of the plans"): [
        ("planning.pipedream_planner.paper_stage", "/ bandwidth) / m", "/ bandwidth)"),
        ("planning.pipedream_planner.paper_stage", "2 * (m - 1)", "2 * m"),
        ("planning.pipedream_planner.paper_stage", "max(seconds, ", "max(seconds, 0 * "),
        ("planning.pipedream_planner.paper_cut", "2 * activations", "0 * activations"),
        ("planning.pipedream_planner.one_level", "range(1, m)", "range(1, min(m, 2))"),
        ("planning.pipedream_planner.one_level", "range(i, j)", "range(i, min(j, i + 2))"),
        ("planning.pipedream_planner.one_level", "before[1] + last[1]", "last[1] + before[1]"),
        ("planning.pipedream_planner.one_level", "max(before[0], ", "max(0.0, "),
        ("planning.pipedream_planner.one_level", "layers[s].activation", "layers[j].activation"),
        ("costs.planning.best_plan", "2 * (m - 1)", "2 * m"),
        ("costs.planning.best_plan", "2 * activations[end - 1]", "activations[end - 1]"),
    ],
    ("planning.pipedream_planner", "replicas of the first stage"): [
        ("planning.pipedream_planner.plan", "(layer.forward + layer.backward)", "layer.forward"),
        # The costs of PipeDream's code, and its profiles.
        ("lessons.planning.pipedream_planner.code_stage", "4 * (m - 1) / m", "4 * (m - 1)"),
        ("lessons.planning.pipedream_planner.code_stage", "max(seconds, ", "(seconds + "),
    ],
    ("tests/planning/test_pipedream_planner.py::test_two_levels_by_hand", "the demo plans flat networks"): [
        ("planning.pipedream_planner.one_level", "(a, b, m * r)", "(a, b, m)"),
    ],
    ("planning.memory_model", "bytes of weights, gradients"): [
        ("planning.memory_model.held", "13 * h", "12 * h"),
        ("planning.memory_model.held", "4 * len(flat)", "4 * own"),
        ("planning.memory_model.held", "zero >= 2 else whole", "zero >= 1 else whole"),
        ("planning.memory_model.held", "last and not first", "last"),
    ],
    ("tests/planning/test_memory_model.py::test_as_the_dry_run", "four ranks divide the demo's buffers"): [
        ("planning.memory_model.held", "-(-n // (d * c)) for n", "n // (d * c) for n"),
    ],
    (
        "tests/planning/test_memory_model.py::test_as_the_dry_run_where_ranks_share_sequences",
        "the demo's layouts cut no sequence",
    ): [
        ("planning.memory_model.held", "s //= c", "pass"),
    ],
    ("planning.memory_model", "bytes of weights and states of this"): [
        ("planning.memory_model.held", "i < L % p", "i == p - 1"),
    ],
    ("planning.memory_model", "bytes that forward of two"): [
        ("planning.memory_model.held", "16 * b * s * h", "15 * b * s * h"),
        ("planning.memory_model.held", "a * b * s)", "b * s)"),
        ("planning.memory_model.held", "layer - kept_of_layer) - logits", "layer - kept_of_layer)"),
    ],
    (
        "tests/planning/test_memory_model.py::test_as_the_dry_run",
        "the demo compares the activations of a single stage",
    ): [
        ("planning.memory_model.held", "min(m, p - i)", "min(m, p)"),
    ],
    ("planning.halving", "slowest stage of the cut that is chosen"): [
        ("planning.halving.successive_halving", "ranked[: -(-count // eta)]", "ranked[::-1][: -(-count // eta)]"),
        ("planning.halving.successive_halving", "key=score.__getitem__)", "key=score.get, reverse=True)"),
    ],
    ("planning.halving", "steps of all trials"): [
        ("planning.halving.successive_halving", "budget // len(counts) // count", "budget // count"),
        ("costs.planning.halving_rounds", "budget // (count * rounds)", "budget // count"),
    ],
    ("planning.halving", "trials, for three"): [
        ("planning.halving.successive_halving", "left = -(-left // eta)", "left = left // eta"),
        ("costs.planning.halving_rounds", "-(-candidates // eta**k)", "candidates // eta**k"),
    ],
    ("tests/costs/test_planning.py::test_bounds", "bounds are only drawn"): [
        ("costs.planning.cut_bounds", "(1 - 1 / stages) * longest", "0"),
    ],
    ("planning.partition", "time of 6 minibatches"): [
        ("costs.planning.flow", "(minibatches - 1)", "minibatches"),
        ("costs.planning.flow", "max(stages)", "sum(stages) / len(stages)"),
    ],
    (
        "tests/planning/test_search.py::test_only_a_bound_above_the_slowest_that_is_kept_ends_the_search",
        "in the demo's spaces the ten with the lowest bounds are the ten fastest",
    ): [
        # The search and the model of time.
        ("planning.search.search", "bound > kept[-1][0]", "bound > kept[0][0]"),
    ],
    ("planning.search", "places among the 10 fastest layouts"): [
        ("planning.search.search", "len(kept) == keep and ", "kept and "),
        ("planning.search.search", " and fits(layout)", ""),
    ],
    ("tests/planning/test_search.py", "in the lesson no two layouts are alike"): [
        ("planning.search.search", "min(found, known or found)", "known or found"),
    ],
    (
        "tests/planning/test_search.py::test_llama_3_s_layout_for_long_sequences_is_among_those_that_fit",
        "the demo's sequences are short",
    ): [
        ("planning.search.contexts", "positions // LONG", "1"),
    ],
    ("planning.search", "layouts that take less time than their lower bound"): [
        ("planning.full.plan_time.least_span", "else sum(one)", "else 2 * sum(one)"),
        ("planning.full.plan_time.least_span", "around + own", "around + own + max(map(sum, each))"),
    ],
    ("planning.search", "median error of the planned speed"): [
        ("planning.full.time_model._bar", "again, idle = max(work) - compute", "again, idle = 0.0"),
        ("planning.full.time_model._stage_seconds", "cluster.reached.products * machine.flops", "machine.flops"),
        ("planning.full.time_model._stage_seconds", "products + core + moved / 3", "products + core"),
    ],
    ("tests/planning/test_time_model.py::test_what_is_fitted_takes_time", "most published runs hide few messages"): [
        ("planning.full.time_model._bar", "exposed + cluster.reached.contended * hidden", "exposed"),
    ],
    (
        "tests/planning/test_time_model.py::test_a_fused_kernel_leaves_out_the_mask_and_computes_scores_again",
        "published runs have short sequences",
    ): [
        ("planning.full.time_model._stage_seconds", "2.5 * core", "2 * core"),
    ],
    ("tests/costs/test_fabric.py", "few published runs wait for the network"): [
        ("costs.fabric.Fabric.ring", "inside * self.reached_out", "self.reached_out"),
        ("costs.fabric.Fabric.message", "== ranks", "> 1"),
        ("costs.fabric.Fabric.wait", "(ranks - nodes) * self.hop", "0"),
        ("costs.fabric.Fabric.leaving", "inside if inside < ranks else 1", "1"),
        ("costs.fabric.pieces", "(PIECE * ranks)", "PIECE"),
    ],
    ("tests/costs/test_layout.py::test_a_step_takes_nearly_what_the_dry_run_says", PAGE): [
        ("costs.layout.seconds", "2.5) * forward", "2) * forward"),
        ("costs.layout.seconds", "+ moved / 3)", ")"),
    ],
    ("tests/costs/test_layout.py::test_the_fastest_layout_is_nearly_the_planner_s", PAGE): [
        ("costs.layout.bar", "exposed + reached.contended * hidden", "exposed"),
        ("costs.layout_search.fits", "1 - ROOM", "1 + ROOM"),
        ("costs.layout_search.fastest", "[min(found)]", "[max(found)]"),
    ],
}
