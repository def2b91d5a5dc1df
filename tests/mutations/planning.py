"""Mistakes in the chapter of planning: in its small forms, the search, its lower bound, and the model of time."""

from tests.mutations import Mutation

HOME, THEORY = "minitrain.planning", "minitrain.costs.planning"
LESSON = "minitrain.lessons.planning.pipedream_planner"
PROFILE, PARTITION, PLANNER, MEMORY, HALVING = (
    f"{HOME}.{name}" for name in ("profile", "partition", "pipedream_planner", "memory_model", "halving")
)
CUTS, BETWEEN = "slowest stages of 84 chains", "time between minibatches at the end"
PLANS, FIRST = "time per minibatch of the plans", "replicas of the first stage"
STATES, STAGE, KEPT = "bytes of weights, gradients", "bytes of weights and states of this", "bytes that forward of two"
TRIALS, STEPS, CHOSEN = "trials, for three", "steps of all trials", "slowest stage of the cut that is chosen"
SEARCH, TIME, MODEL = (f"minitrain.planning.{name}" for name in ("search", "full.plan_time", "full.time_model"))
SAME, BOUND = "places among the 10 fastest layouts", "layouts that take less time than their lower bound"
OFF = "median error of the planned speed"
FABRIC, LINKS, TESTS = "minitrain.costs.fabric.Fabric", "tests/costs/test_fabric.py", "tests/planning"
FEW = "few published runs wait for the network"
TIMES, FILE = "seconds on this machine are no claim", "the demo writes no file"

LAYOUT, RANKED, LAYOUTS = "minitrain.costs.layout", "minitrain.costs.layout_search", "tests/costs/test_layout.py"
STEP = "test_a_step_takes_nearly_what_the_dry_run_says"
NEARLY = "test_the_fastest_layout_is_nearly_the_planner_s"
PAGE = "the calculator's page shows it, and no demo"

MUTATIONS = [
    # Practice: profiles.
    Mutation(f"{PROFILE}.measure", "y.nbytes, weight)", "x.nbytes, weight)", PROFILE, "bytes that each layer"),
    Mutation(
        f"{PROFILE}.measure",
        "layer.parameters())\n        profile",
        "layer.parameters() if parameter.dim() > 1)\n        profile",
        PROFILE,
        "bytes of each layer's weights",
    ),
    Mutation(
        f"{PROFILE}.measure",
        "range(repeats + 1)",
        "range(repeats)",
        test="tests/planning/test_profile.py::test_times_are_those_of_each_layer",
        why=TIMES,
    ),
    Mutation(
        f"{PROFILE}.measure",
        "if leaves and y.requires_grad:",
        "if leaves and y.requires_grad and len(times) < 2:",
        test="tests/planning/test_profile.py::test_times_are_those_of_each_layer",
        why=TIMES,
    ),
    Mutation(
        f"{PROFILE}.write",
        "{forward!r}",
        "{forward:.3f}",
        test="tests/planning/test_profile.py::test_a_file_keeps_every_digit",
        why=FILE,
    ),
    Mutation(
        f"{PROFILE}.read",
        "assert not missing",
        "assert missing or not missing",
        test="tests/planning/test_profile.py::test_files_that_lack_something",
        why=FILE,
    ),
    # Cuts.
    Mutation(f"{PARTITION}.partition", "max(best[s][0], messages[s - 1],", "max(messages[s - 1],", PARTITION, CUTS),
    Mutation(f"{PARTITION}.partition", "min(ways)", "max(ways)", PARTITION, CUTS),
    Mutation(f"{PARTITION}.partition", "messages[s - 1]", "messages[s]", PARTITION, BETWEEN),
    Mutation(f"{PARTITION}.partition", "range(2, p + 1)", "range(2, p)", PARTITION, CUTS),
    # The planner.
    Mutation(f"{PLANNER}.paper_stage", "/ bandwidth) / m", "/ bandwidth)", PLANNER, PLANS),
    Mutation(f"{PLANNER}.paper_stage", "2 * (m - 1)", "2 * m", PLANNER, PLANS),
    Mutation(f"{PLANNER}.paper_stage", "max(seconds, ", "max(seconds, 0 * ", PLANNER, PLANS),
    Mutation(f"{PLANNER}.paper_cut", "2 * activations", "0 * activations", PLANNER, PLANS),
    Mutation(f"{PLANNER}.one_level", "range(1, m)", "range(1, min(m, 2))", PLANNER, PLANS),
    Mutation(f"{PLANNER}.one_level", "range(i, j)", "range(i, min(j, i + 2))", PLANNER, PLANS),
    Mutation(f"{PLANNER}.one_level", "before[1] + last[1]", "last[1] + before[1]", PLANNER, PLANS),
    Mutation(f"{PLANNER}.one_level", "max(before[0], ", "max(0.0, ", PLANNER, PLANS),
    Mutation(f"{PLANNER}.one_level", "layers[s].activation", "layers[j].activation", PLANNER, PLANS),
    Mutation(f"{PLANNER}.plan", "(layer.forward + layer.backward)", "layer.forward", PLANNER, FIRST),
    Mutation(
        f"{PLANNER}.one_level",
        "(a, b, m * r)",
        "(a, b, m)",
        test="tests/planning/test_pipedream_planner.py::test_two_levels_by_hand",
        why="the demo plans flat networks",
    ),
    # The costs of PipeDream's code, and its profiles.
    Mutation(f"{LESSON}.code_stage", "4 * (m - 1) / m", "4 * (m - 1)", PLANNER, FIRST),
    Mutation(f"{LESSON}.code_stage", "max(seconds, ", "(seconds + ", PLANNER, FIRST),
    # Memory.
    Mutation(f"{MEMORY}.held", "13 * h", "12 * h", MEMORY, STATES),
    Mutation(
        f"{MEMORY}.held",
        "-(-n // (d * c)) for n",
        "n // (d * c) for n",
        test="tests/planning/test_memory_model.py::test_as_the_dry_run",
        why="four ranks divide the demo's buffers",
    ),
    Mutation(
        f"{MEMORY}.held",
        "s //= c",
        "pass",
        test="tests/planning/test_memory_model.py::test_as_the_dry_run_where_ranks_share_sequences",
        why="the demo's layouts cut no sequence",
    ),
    Mutation(f"{MEMORY}.held", "4 * len(flat)", "4 * own", MEMORY, STATES),
    Mutation(f"{MEMORY}.held", "i < L % p", "i == p - 1", MEMORY, STAGE),
    Mutation(f"{MEMORY}.held", "16 * b * s * h", "15 * b * s * h", MEMORY, KEPT),
    Mutation(f"{MEMORY}.held", "a * b * s)", "b * s)", MEMORY, KEPT),
    Mutation(
        f"{MEMORY}.held",
        "min(m, p - i)",
        "min(m, p)",
        test="tests/planning/test_memory_model.py::test_as_the_dry_run",
        why="the demo compares the activations of a single stage",
    ),
    Mutation(f"{MEMORY}.held", "zero >= 2 else whole", "zero >= 1 else whole", MEMORY, STATES),
    Mutation(f"{MEMORY}.held", "last and not first", "last", MEMORY, STATES),
    Mutation(f"{MEMORY}.held", "layer - kept_of_layer) - logits", "layer - kept_of_layer)", MEMORY, KEPT),
    # Successive halving.
    Mutation(
        f"{HALVING}.successive_halving",
        "ranked[: -(-count // eta)]",
        "ranked[::-1][: -(-count // eta)]",
        HALVING,
        CHOSEN,
    ),
    Mutation(
        f"{HALVING}.successive_halving", "key=score.__getitem__)", "key=score.get, reverse=True)", HALVING, CHOSEN
    ),
    Mutation(
        f"{HALVING}.successive_halving",
        "budget // len(counts) // count",
        "budget // count",
        HALVING,
        STEPS,
    ),
    Mutation(f"{HALVING}.successive_halving", "left = -(-left // eta)", "left = left // eta", HALVING, TRIALS),
    # Theory.
    Mutation(f"{THEORY}.best_cut", "return min(found)", "return max(found)", PARTITION, CUTS),
    Mutation(f"{THEORY}.best_cut", "messages[begin - 1]", "messages[begin]", PARTITION, BETWEEN),
    Mutation(
        f"{THEORY}.cut_bounds",
        "(1 - 1 / stages) * longest",
        "0",
        test="tests/costs/test_planning.py::test_bounds",
        why="bounds are only drawn",
    ),
    Mutation(f"{THEORY}.flow", "(minibatches - 1)", "minibatches", PARTITION, "time of 6 minibatches"),
    Mutation(f"{THEORY}.flow", "max(stages)", "sum(stages) / len(stages)", PARTITION, "time of 6 minibatches"),
    Mutation(f"{THEORY}.best_plan", "2 * (m - 1)", "2 * m", PLANNER, PLANS),
    Mutation(f"{THEORY}.best_plan", "2 * activations[end - 1]", "activations[end - 1]", PLANNER, PLANS),
    Mutation(f"{THEORY}.compositions", "range(1, total)", "range(1, total - 1)", PARTITION, CUTS),
    Mutation(f"{THEORY}.halving_rounds", "-(-candidates // eta**k)", "candidates // eta**k", HALVING, TRIALS),
    Mutation(f"{THEORY}.halving_rounds", "budget // (count * rounds)", "budget // count", HALVING, STEPS),
    # The search and the model of time.
    Mutation(
        f"{SEARCH}.search",
        "bound > kept[-1][0]",
        "bound > kept[0][0]",
        test="tests/planning/test_search.py::test_only_a_bound_above_the_slowest_that_is_kept_ends_the_search",
        why="in the demo's spaces the ten with the lowest bounds are the ten fastest",
    ),
    Mutation(f"{SEARCH}.search", "len(kept) == keep and ", "kept and ", SEARCH, SAME),
    Mutation(f"{SEARCH}.search", " and fits(layout)", "", SEARCH, SAME),
    Mutation(
        f"{SEARCH}.search",
        "min(found, known or found)",
        "known or found",
        test="tests/planning/test_search.py",
        why="in the lesson no two layouts are alike",
    ),
    Mutation(
        f"{SEARCH}.contexts",
        "positions // LONG",
        "1",
        test="tests/planning/test_search.py::test_llama_3_s_layout_for_long_sequences_is_among_those_that_fit",
        why="the demo's sequences are short",
    ),
    Mutation(f"{TIME}.least_span", "else sum(one)", "else 2 * sum(one)", SEARCH, BOUND),
    Mutation(f"{TIME}.least_span", "around + own", "around + own + max(map(sum, each))", SEARCH, BOUND),
    Mutation(f"{MODEL}._bar", "again, idle = max(work) - compute", "again, idle = 0.0", SEARCH, OFF),
    Mutation(f"{MODEL}._stage_seconds", "cluster.reached.products * machine.flops", "machine.flops", SEARCH, OFF),
    Mutation(f"{MODEL}._stage_seconds", "products + core + moved / 3", "products + core", SEARCH, OFF),
    Mutation(
        f"{MODEL}._bar",
        "exposed + cluster.reached.contended * hidden",
        "exposed",
        test=f"{TESTS}/test_time_model.py::test_what_is_fitted_takes_time",
        why="most published runs hide few messages",
    ),
    Mutation(
        f"{MODEL}._stage_seconds",
        "2.5 * core",
        "2 * core",
        test=f"{TESTS}/test_time_model.py::test_a_fused_kernel_leaves_out_the_mask_and_computes_scores_again",
        why="published runs have short sequences",
    ),
    Mutation(f"{FABRIC}.ring", "inside * self.reached_out", "self.reached_out", test=LINKS, why=FEW),
    Mutation(f"{FABRIC}.message", "== ranks", "> 1", test=LINKS, why=FEW),
    Mutation(f"{FABRIC}.wait", "(ranks - nodes) * self.hop", "0", test=LINKS, why=FEW),
    Mutation(f"{FABRIC}.leaving", "inside if inside < ranks else 1", "1", test=LINKS, why=FEW),
    Mutation("minitrain.costs.fabric.pieces", "(PIECE * ranks)", "PIECE", test=LINKS, why=FEW),
    # Theory: the calculator's closed formulas, and its ranking.
    Mutation(f"{LAYOUT}.seconds", "2.5) * forward", "2) * forward", test=f"{LAYOUTS}::{STEP}", why=PAGE),
    Mutation(f"{LAYOUT}.seconds", "+ moved / 3)", ")", test=f"{LAYOUTS}::{STEP}", why=PAGE),
    Mutation(f"{LAYOUT}.bar", "exposed + reached.contended * hidden", "exposed", test=f"{LAYOUTS}::{NEARLY}", why=PAGE),
    Mutation(f"{RANKED}.fits", "1 - ROOM", "1 + ROOM", test=f"{LAYOUTS}::{NEARLY}", why=PAGE),
    Mutation(f"{RANKED}.fastest", "[min(found)]", "[max(found)]", test=f"{LAYOUTS}::{NEARLY}", why=PAGE),
    Mutation(
        "minitrain.planning.full.proposals.efficiency",
        "bar.compute - one / layout.ranks",
        "bar.compute",
        test="tests/planning/test_scaling.py",
        why="the efficiency of a plan is shown, not claimed",
    ),
    Mutation(
        "minitrain.planning.full.scaling.curve",
        "divmod(steps.batch * count, gpus)",
        "divmod(steps.batch, 1)",
        test="tests/planning/test_scaling.py",
        why="the curve is drawn, not claimed",
    ),
]
