"""Mistakes in formulas that only a picture and a solution use."""

DRAWN_ONLY = "the lesson draws it, for GPUs that are not there"

FOUND_BY = {
    ("tests/costs/test_inference.py::test_a_step_by_hand", DRAWN_ONLY): [
        ("costs.inference.decode", "model.parameters * item + cache", "model.parameters * item"),
    ],
    ("tests/costs/test_inference.py::test_in_a_full_batch_products_take_as_long_as_reading", DRAWN_ONLY): [
        ("costs.inference.full_batch", "item / 2", "2 / item"),
    ],
}
