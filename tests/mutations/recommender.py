"""Mistakes in recommender."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("recommender.embedding", "elements that differ from a dense"),
    ("recommender.tables.by_owner", "distinct(ids)", "distinct(ids % 100)"),
    by_claim("recommender.hybrid", "bytes to and from the busiest rank for tables, 4 steps, hybrid"),
    (
        "recommender.hybrid.HybridTables.push",
        "came = self._exchange(gradients, pending.wishes, self._dimensions, forth=True)",
        "came = [self._exchange(gradients, pending.wishes, self._dimensions, forth=True) for _ in gradients][0]",
    ),
    by_claim("recommender.hybrid", "elements of rows and states"),
    ("recommender.hybrid.HybridTables.push", "total / self.ranks)", "-total / self.ranks)"),
    by_test("tests/recommender/test_asynchronous.py"),
    ("recommender.asynchronous.AsynchronousTable.take", "popleft()", "pop()"),
    ("recommender.asynchronous.AsynchronousTable.apply", "-self.lr / self.ranks", "-self.lr"),
    by_claim("recommender.asynchronous", "updates that a row missed on average, the 3 most"),
    ("recommender.asynchronous.train", "table.staleness + 1", "table.staleness + 2"),
    by_claim(
        "recommender.asynchronous",
        "updates that a row missed on average, the 3 most",
        "updates that a row missed on average, the 900 rarest",
    ),
    ("recommender.asynchronous.AsynchronousTable.apply", "+= 1", "+= 0"),
    by_claim("recommender.asynchronous", "updates that a row missed on average, the 900 rarest"),
    ("costs.staleness.missed_updates", "batch * ranks", "batch"),
    by_claim("recommender.asynchronous", "time of 12 steps, s = 1 or 2"),
    ("costs.staleness.hybrid_seconds", "(compute + reduce)", "compute"),
    by_claim("recommender.asynchronous", "time of 12 steps, s = 0"),
    ("costs.staleness.hybrid_seconds", "max(reduce,", "min(reduce,"),
    by_test("tests/recommender/test_tables.py::test_a_row_that_was_only_looked_up_is_as_old_as_its_lookup"),
    ("recommender.tables.Table._numbers", "self._last[numbers[new]] = self.updates", "self._last[numbers[new]] = 0"),
    by_test("tests/recommender/test_serving.py::test_rows_that_are_evicted_leave_the_replica_and_may_come_back"),
    ("recommender.serving.Publisher.publish", "self.table.updates, []", "self.table.updates, self._evicted"),
)
