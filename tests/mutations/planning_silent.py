"""Mistakes in what is planned, proposed and shown."""

from tests.mutations import by_test, table

SHOWN = "no demo proposes layouts, or shows them"
TIMED = "a training on this machine takes as long as it takes"

MUTATIONS = table(
    by_test(
        "tests/planning/test_memory_model.py::test_as_the_dry_run",
        "the demo of the dry run counts parameters and operations",
    ),
    ("planning.plan._activations", "kept[stage] = numbers + output[stage]", "kept[stage] = output[stage]"),
    by_test(
        "tests/planning/test_plan.py::test_coordinates_count_tp_fastest", "demos ask for the first rank of a stage"
    ),
    ("planning.plan.coordinate", "pp, dp = divmod(rest, layout.dp)", "dp, pp = divmod(rest, layout.pp)"),
    by_test("tests/planning/test_plan.py::test_ordered_sums", "no demo plans ordered sums"),
    ("planning.plan.held", "steps.ordered_sums and place.dp > 0", "steps.ordered_sums"),
    by_test("tests/planning/test_plan.py::test_stages_that_are_alike_share_a_line", SHOWN),
    ("planning.full.plan_tables.alike", "run[-1].coordinate.pp", "len(run)"),
    by_test("tests/planning/test_plan.py::test_seconds_of_a_step_and_both_utilizations", SHOWN),
    ("planning.full.plan_tables.time_table", "min(utilization, most)", "utilization"),
    by_test("tests/planning/test_search.py::test_uneven_splits_are_proposed_where_they_are_faster", SHOWN),
    ("planning.full.proposals.uneven", "range(1, counts[-1])", "range(1, counts[-1] - 1)"),
    by_test("tests/planning/test_command.py::test_json_agrees_with_the_table", SHOWN),
    ("planning.full.proposals.judge", "cluster.machine.flops,", "(cluster.reached.products * cluster.machine.flops),"),
    ("planning.full.command.days", "/ 86400", "/ 3600"),
    by_test("tests/planning/test_command.py::test_notes_on_uneven_layers", SHOWN),
    ("planning.full.command.runs", "groupby(counts)", "groupby(sorted(counts))"),
    by_test("tests/planning/test_game.py::test_a_score_is_tokens_over_seconds", SHOWN),
    ("planning.full.game.flops", 'if at.source.startswith("Narayanan") else work.model)', ")"),
    ("planning.full.proposals.judge", "work.tokens / bar.step, work.model /", "work.tokens / bar.step, work.done /"),
    by_test("tests/planning/test_measure.py::test_the_first_two_steps_are_not_counted", TIMED),
    ("planning.full.measure.tokens_per_second", ".median(seconds[2:] or seconds)", ".median(seconds)"),
    by_test("tests/planning/test_measure.py::test_a_row_is_read_as_what_was_measured", TIMED),
    ("planning.full.measure.row", ".batch * shape.positions / speed", ".batch * shape.positions * ranks / speed"),
    by_test("tests/planning/test_measure.py::test_the_gpu_at_hand_is_found_in_the_table", TIMED),
    ("planning.full.measure.gpu_at_hand", ' and not words & {"PCIe", "PCIE", "NVL"}', ""),
    by_test("tests/planning/test_step_picture.py::test_bars_end_where_their_sums_are", SHOWN),
    ("planning.full.step_picture._draw_held", "bottom = [low + height", "bottom = [height"),
    ("planning.full.step_picture._draw_bar", "left += seconds", "left = seconds"),
)
