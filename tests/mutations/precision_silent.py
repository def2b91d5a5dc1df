"""Mistakes in the chapter of precision that only a second case shows: ties, sizes of numbers, a step later."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("precision.mixed", "bytes per parameter when the optimizer steps"),
    ("precision.mixed.MixedPrecision.step", "parameter.grad.float(), None", "parameter.grad.float(), parameter.grad"),
    by_test(
        "tests/precision/test_precision.py::test_master_weights_are_float32_training_of_rounded_gradients",
        "claims are about what becomes of a weight",
    ),
    ("precision.master_weights.MasterWeights.step", "master.grad = None  # as", "pass  # as"),
    by_test(
        "tests/precision/test_precision.py::test_a_delayed_scale_is_after_the_largest_of_the_calls_before",
        "where the demo looks, the last of the calls is the largest",
    ),
    ("precision.fp8.Scale.quantize", "max(self.amax)", "self.amax[-1]"),
    by_test(
        "tests/precision/test_precision.py::test_gradients_have_the_range_of_e5m2",
        "the claim is a bound, and of numbers of one size e4m3 rounds less",
    ),
    ("precision.fp8.Linear.backward", "scale.quantize(gradient, E5M2)", "scale.quantize(gradient, E4M3)"),
    by_test(
        "tests/precision/test_precision.py::test_small_and_large_numbers",
        "the demo has rows of size 1 and larger ones, where ε does not count",
    ),
    ("precision.accumulate.rms_norm", "keepdim=True) + epsilon)", "keepdim=True)) + epsilon"),
    by_test(
        "tests/precision/test_precision.py::test_a_scale_bears_an_overflow_again_once_it_has_been_doubled",
        "the demo has a hysteresis of 1",
    ),
    ("precision.loss_scaling.LossScale.update", "self.clean, self.left = 0, self.hysteresis", "self.clean = 0"),
    by_test("tests/precision/test_precision.py::test_small_and_large_numbers", "scores of the demo are small"),
    ("precision.accumulate.softmax", "wide - wide.amax(-1, keepdim=True)", "wide"),
    by_claim("precision.mixed", "weights that differ between ranks"),
    ("lessons.precision.common.differing", "dist.ReduceOp.MIN", "dist.ReduceOp.SUM"),
    by_claim("precision.mixed", "length of an SGD step"),
    ("lessons.precision.mixed.demo", "0.5 * CLIP", "CLIP"),
)
