"""Mistakes in the ages of rows, which show only versions later."""

from tests.mutations import by_test, table

MUTATIONS = table(
    by_test(
        "tests/recommender/test_tables.py::test_a_row_that_was_only_looked_up_is_as_old_as_its_lookup",
        "the demo drops only rows that updates have made",
    ),
    ("recommender.tables.Table._numbers", "self._last[numbers[new]] = self.updates", "self._last[numbers[new]] = 0"),
    by_test(
        "tests/recommender/test_serving.py::test_rows_that_are_evicted_leave_the_replica_and_may_come_back",
        "the demo ends with the first version after rows were dropped",
    ),
    ("recommender.serving.Publisher.publish", "self.table.updates, []", "self.table.updates, self._evicted"),
)
