"""Mistakes in the full form of the pipeline: its messages, and the versions of its weights."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.pipeline_parallel.full.mail.Mail._release",
        "place < self._place[message.made]",
        "False",
        test="tests/pipeline_parallel/test_released_outputs.py::test_1f1b_releases_what_has_surely_arrived",
        why="it changes memory only",
    ),
    Mutation(
        "minitrain.pipeline_parallel.full.actions.Schedule.version_of",
        "self._versions.get(action, 0)",
        "0",
        test="tests/pipeline_parallel/test_schedules.py::test_versions_by_hand",
        why="the lesson compares real ranks with formulas, not with the schedule",
    ),
    Mutation(
        "minitrain.pipeline_parallel.full.versions.kept",
        "len(needed) + 1",
        "len(needed)",
        test="tests/pipeline_parallel/test_schedules.py::test_kept_and_staleness_by_hand",
        why="the lesson compares real ranks with formulas, not with the schedule",
    ),
    Mutation(
        "minitrain.pipeline_parallel.full.versions.staleness",
        "number // schedule.every - version",
        "number - version",
        test="tests/pipeline_parallel/test_schedules.py::test_kept_and_staleness_by_hand",
        why="the lesson compares real ranks with formulas, not with the schedule",
    ),
]
