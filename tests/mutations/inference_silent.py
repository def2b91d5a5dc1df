"""Mistakes in formulas that only a picture and a solution use."""

from tests.mutations import by_test, table

DRAWN_ONLY = "the lesson draws it, for GPUs that are not there"

MUTATIONS = table(
    by_test("tests/costs/test_inference.py::test_a_step_by_hand", DRAWN_ONLY),
    ("costs.inference.decode", "model.parameters * item + cache", "model.parameters * item"),
    by_test("tests/costs/test_inference.py::test_in_a_full_batch_products_take_as_long_as_reading", DRAWN_ONLY),
    ("costs.inference.full_batch", "item / 2", "2 / item"),
)
