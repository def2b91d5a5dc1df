"""Mistakes in composed training that both sides of a claim would share."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.composition.optimizer.groups",
        '"weight_decay": 0.0, "use_muon": False',
        '"weight_decay": steps.weight_decay, "use_muon": False',
        test="tests/trainer/test_optimizers.py::test_a_step_is_one_device_s_in_which_norms_and_biases_do_not_decay",
        why="the demo compares AdamW and SGD with one device, and other optimizers between layouts",
    ),
    Mutation(
        "minitrain.composition.optimizer.groups",
        "hidden if matrix and in_block",
        "hidden if matrix",
        test="tests/trainer/test_optimizers.py::test_a_step_is_one_device_s_in_which_norms_and_biases_do_not_decay",
        why="the demo compares AdamW and SGD with one device, and other optimizers between layouts",
    ),
]
