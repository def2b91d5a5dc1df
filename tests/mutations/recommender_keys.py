"""Mistakes by which key claims of the chapter recommender turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.recommender"
THEORY = "minitrain.costs"
LATE = f"{HOME}.asynchronous"
TABLE = f"{LATE}.AsynchronousTable"
MISSED = "updates that a row missed on average"

MUTATIONS = [
    # Ids share rows, as with the hashing trick.
    Mutation(
        f"{HOME}.tables.by_owner",
        "distinct(ids)",
        "distinct(ids % 100)",
        f"{HOME}.embedding",
        "elements that differ from a dense",
    ),
    # An all-to-all for each table.
    Mutation(
        f"{HOME}.hybrid.HybridTables.push",
        "came = self._exchange(gradients, pending.wishes, self._dimensions, forth=True)",
        "came = [self._exchange(gradients, pending.wishes, self._dimensions, forth=True) for _ in gradients][0]",
        f"{HOME}.hybrid",
        "bytes to and from the busiest rank for tables, 4 steps, hybrid",
    ),
    # Ids of 4 bytes.
    Mutation(
        f"{THEORY}.embedding.step",
        "sum(partner) * ID",
        "sum(partner) * 4",
        f"{HOME}.hybrid",
        "bytes to and from the busiest rank for tables, 4 steps, servers",
    ),
    # Uphill.
    Mutation(
        f"{HOME}.hybrid.HybridTables.push",
        "total / self.ranks)",
        "-total / self.ranks)",
        f"{HOME}.hybrid",
        "AUC reached in 64 steps, expected over labels, beside the best without",
    ),
    # The rows of the newest batch that was fetched, not of the oldest.
    Mutation(
        f"{TABLE}.take", "popleft()", "pop()", LATE, ("distance of rows and dense part", "loss on new impressions")
    ),
    # A step too early.
    Mutation(f"{LATE}.train", "table.staleness + 1", "table.staleness + 2", LATE, f"{MISSED}, the 3 most"),
    # The sum over ranks.
    Mutation(f"{TABLE}.apply", "-self.lr / self.ranks", "-self.lr", LATE, "distance of rows and dense part"),
    # Updates are not counted.
    Mutation(
        f"{TABLE}.apply",
        "+= 1",
        "+= 0",
        LATE,
        (f"{MISSED}, the 3 most", f"{MISSED}, the 900 rarest"),
    ),
    # One batch's ids for those of all ranks; all-reduces that cost nothing, or hide nothing.
    Mutation(f"{THEORY}.staleness.missed_updates", "batch * ranks", "batch", LATE, f"{MISSED}, the 900 rarest"),
    Mutation(
        f"{THEORY}.staleness.hybrid_seconds", "(compute + reduce)", "compute", LATE, "time of 12 steps, s = 1 or 2"
    ),
    Mutation(f"{THEORY}.staleness.hybrid_seconds", "max(reduce,", "min(reduce,", LATE, "time of 12 steps, s = 0"),
]
