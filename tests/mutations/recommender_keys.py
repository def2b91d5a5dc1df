"""Mistakes by which key claims of the chapter recommender turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.recommender"
THEORY = "minitrain.costs"

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
]
