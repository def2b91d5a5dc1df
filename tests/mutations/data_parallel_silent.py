"""Mistakes in data parallelism that show only in the step after."""

from tests.mutations import by_test, table

MUTATIONS = table(
    by_test(
        "tests/data_parallel/test_replica.py::test_unused_parameters",
        "in the demos the same parameter is unused in every step, so that old flags are right ones",
    ),
    ("data_parallel.full.bucketed.Bucket.hand_back", "self._absent.clear()", "pass"),
)
