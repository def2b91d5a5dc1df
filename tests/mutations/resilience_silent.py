"""Mistakes in sums that do not depend on the number of ranks, only on the dtype."""

from tests.mutations import by_test, table

MUTATIONS = table(
    by_test(
        "tests/resilience/test_ordered_sum.py::test_the_norm_of_float32_is_added_in_float64",
        "the claim counts the values that ranks find, which float32 would share",
    ),
    ("resilience.ordered_sum.ordered_norm", "part.double()", "part"),
)
