"""Mistakes in the full forms of optimizers."""

from tests.mutations import by_test, table

MUTATIONS = table(
    by_test(
        "tests/optimizers/test_full.py::test_the_small_form_s_steps_to_the_bit",
        "claims compare the small form with the paper, and the full form with itself on other ranks",
    ),
    ("optimizers.full.layer_wise.LAMB._direction", 'state["step"] += 1', 'state["step"].fill_(1)'),
    ("optimizers.full.layer_wise.LAMB._move", 'x_norm.clamp(*group["phi"])', "x_norm"),
    ("optimizers.full.layer_wise.LARS._move", 'v.mul_(group["momentum"])', "v.mul_(0)"),
    by_test(
        "tests/optimizers/test_on_shards.py::test_every_stage_steps_as_one_device",
        "claims on ZeRO are about the small form",
    ),
    ("optimizers.full.layer_wise.LayerWise.step", "self.summed(torch.stack(squares))", "torch.stack(squares)"),
)
