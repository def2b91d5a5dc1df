"""Mistakes in composed training that both sides of a claim would share."""

from tests.mutations import by_test, table

MUTATIONS = table(
    by_test(
        "tests/trainer/test_optimizers.py::test_a_step_is_one_device_s_in_which_norms_and_biases_do_not_decay",
        "the demo compares AdamW and SGD with one device, and other optimizers between layouts",
    ),
    ("composition.optimizer.groups", 'weight_decay": 0.0, "use_muon"', 'weight_decay": steps.weight_decay, "use_muon"'),
    ("composition.optimizer.groups", "hidden if matrix and in_block", "hidden if matrix"),
)
