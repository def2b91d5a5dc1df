"""Mistakes in formulas that only a picture and a solution use."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.costs.inference.decode",
        "model.parameters * item + cache",
        "model.parameters * item",
        test="tests/costs/test_inference.py::test_a_step_by_hand",
        why="the lesson draws it, for GPUs that are not there",
    ),
    Mutation(
        "minitrain.costs.inference.full_batch",
        "item / 2",
        "2 / item",
        test="tests/costs/test_inference.py::test_in_a_full_batch_products_take_as_long_as_reading",
        why="the lesson draws it, for GPUs that are not there",
    ),
]
