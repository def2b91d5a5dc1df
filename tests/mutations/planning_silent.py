"""Mistakes in what is planned, proposed and shown."""

from tests.mutations import Mutation

HOME, TESTS = "minitrain.planning", "tests/planning"
SHOWN = "no demo proposes layouts, or shows them"

MUTATIONS = [
    Mutation(
        f"{HOME}.plan._activations",
        "kept[stage] = numbers + output[stage]",
        "kept[stage] = output[stage]",
        test=f"{TESTS}/test_memory_model.py::test_as_the_dry_run",
        why="the demo of the dry run counts parameters and operations",
    ),
    Mutation(
        f"{HOME}.plan.coordinate",
        "pp, dp = divmod(rest, layout.dp)",
        "dp, pp = divmod(rest, layout.pp)",
        test=f"{TESTS}/test_plan.py::test_coordinates_count_tp_fastest",
        why="demos ask for the first rank of a stage",
    ),
    Mutation(
        f"{HOME}.plan.held",
        "steps.ordered_sums and place.dp > 0",
        "steps.ordered_sums",
        test=f"{TESTS}/test_plan.py::test_ordered_sums",
        why="no demo plans ordered sums",
    ),
    Mutation(
        f"{HOME}.full.plan_tables.alike",
        "run[-1].coordinate.pp",
        "len(run)",
        test=f"{TESTS}/test_plan.py::test_stages_that_are_alike_share_a_line",
        why=SHOWN,
    ),
    Mutation(
        f"{HOME}.full.plan_tables.time_table",
        "min(utilization, most)",
        "utilization",
        test=f"{TESTS}/test_plan.py::test_seconds_of_a_step_and_both_utilizations",
        why=SHOWN,
    ),
    Mutation(
        f"{HOME}.full.proposals.uneven",
        "range(1, counts[-1])",
        "range(1, counts[-1] - 1)",
        test=f"{TESTS}/test_search.py::test_uneven_splits_are_proposed_where_they_are_faster",
        why=SHOWN,
    ),
    Mutation(
        f"{HOME}.full.proposals.judge",
        "own / cluster.machine.flops, limit",
        "own / (cluster.reached.products * cluster.machine.flops), limit",
        test=f"{TESTS}/test_command.py::test_json_agrees_with_the_table",
        why=SHOWN,
    ),
    Mutation(
        f"{HOME}.full.command.days",
        "/ 86400",
        "/ 3600",
        test=f"{TESTS}/test_command.py::test_json_agrees_with_the_table",
        why=SHOWN,
    ),
    Mutation(
        f"{HOME}.full.command.runs",
        "groupby(counts)",
        "groupby(sorted(counts))",
        test=f"{TESTS}/test_command.py::test_notes_on_uneven_layers",
        why=SHOWN,
    ),
    Mutation(
        f"{HOME}.full.game.flops",
        'if at.source.startswith("Narayanan") else work.model)',
        ")",
        test=f"{TESTS}/test_game.py::test_a_score_is_tokens_over_seconds",
        why=SHOWN,
    ),
    Mutation(
        f"{HOME}.full.proposals.judge",
        "own = work.tokens / bar.step, work.model /",
        "own = work.tokens / bar.step, work.done /",
        test=f"{TESTS}/test_game.py::test_a_score_is_tokens_over_seconds",
        why=SHOWN,
    ),
    Mutation(
        f"{HOME}.full.measure.tokens_per_second",
        "statistics.median(seconds[2:] or seconds)",
        "statistics.median(seconds)",
        test=f"{TESTS}/test_measure.py::test_the_first_two_steps_are_not_counted",
        why="a training on this machine takes as long as it takes",
    ),
    Mutation(
        f"{HOME}.full.measure.row",
        "steps.batch * shape.positions / speed",
        "steps.batch * shape.positions * ranks / speed",
        test=f"{TESTS}/test_measure.py::test_a_row_is_read_as_what_was_measured",
        why="a training on this machine takes as long as it takes",
    ),
    Mutation(
        f"{HOME}.full.measure.gpu_at_hand",
        ' and not words & {"PCIe", "PCIE", "NVL"}',
        "",
        test=f"{TESTS}/test_measure.py::test_the_gpu_at_hand_is_found_in_the_table",
        why="a training on this machine takes as long as it takes",
    ),
    Mutation(
        f"{HOME}.full.step_picture._draw_held",
        "bottom = [low + height",
        "bottom = [height",
        test=f"{TESTS}/test_step_picture.py::test_bars_end_where_their_sums_are",
        why=SHOWN,
    ),
    Mutation(
        f"{HOME}.full.step_picture._draw_bar",
        "left += seconds",
        "left = seconds",
        test=f"{TESTS}/test_step_picture.py::test_bars_end_where_their_sums_are",
        why=SHOWN,
    ),
]
