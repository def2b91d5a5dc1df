"""Mistakes in the full form of the pipeline: its messages, and the versions of its weights."""

from tests.mutations import by_test, table

FORMULAS = "the lesson compares real ranks with formulas, not with the schedule"

MUTATIONS = table(
    by_test(
        "tests/pipeline_parallel/test_released_outputs.py::test_1f1b_releases_what_has_surely_arrived",
        "it changes memory only",
    ),
    ("pipeline_parallel.full.mail.Mail._release", "place < self._place[message.made]", "False"),
    by_test("tests/pipeline_parallel/test_schedules.py::test_versions_by_hand", FORMULAS),
    ("pipeline_parallel.full.actions.Schedule.version_of", "self._versions.get(action, 0)", "0"),
    by_test("tests/pipeline_parallel/test_schedules.py::test_kept_and_staleness_by_hand", FORMULAS),
    ("pipeline_parallel.full.versions.kept", "len(needed) + 1", "len(needed)"),
    ("pipeline_parallel.full.versions.staleness", "number // schedule.every - version", "number - version"),
)
