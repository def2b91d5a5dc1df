"""Mistakes in the chapter of precision that only a second case shows: ties, sizes of numbers, a step later."""

from tests.mutations import Mutation

HOME = "minitrain.precision"
MASTERS, MIXED = (f"{HOME}.{name}" for name in ("master_weights", "mixed"))

TESTS = "tests/precision/test_precision.py"

MUTATIONS = [
    Mutation(
        f"{MIXED}.MixedPrecision.step",
        "parameter.grad.float(), None",
        "parameter.grad.float(), parameter.grad",
        MIXED,
        "bytes per parameter when the optimizer steps",
    ),
    Mutation(
        f"{MASTERS}.MasterWeights.step",
        "master.grad = None  # as",
        "pass  # as",
        test=f"{TESTS}::test_master_weights_are_float32_training_of_rounded_gradients",
        why="claims are about what becomes of a weight",
    ),
    Mutation(
        "minitrain.precision.fp8.Scale.quantize",
        "max(self.amax)",
        "self.amax[-1]",
        test=f"{TESTS}::test_a_delayed_scale_is_after_the_largest_of_the_calls_before",
        why="where the demo looks, the last of the calls is the largest",
    ),
    Mutation(
        "minitrain.precision.fp8.Linear.backward",
        "scale.quantize(gradient, E5M2)",
        "scale.quantize(gradient, E4M3)",
        test=f"{TESTS}::test_gradients_have_the_range_of_e5m2",
        why="the claim is a bound, and of numbers of one size e4m3 rounds less",
    ),
    Mutation(
        "minitrain.precision.accumulate.rms_norm",
        "keepdim=True) + epsilon)",
        "keepdim=True)) + epsilon",
        test=f"{TESTS}::test_small_and_large_numbers",
        why="the demo has rows of size 1 and larger ones, where ε does not count",
    ),
    Mutation(
        "minitrain.precision.loss_scaling.LossScale.update",
        "self.clean, self.left = 0, self.hysteresis",
        "self.clean = 0",
        test=f"{TESTS}::test_a_scale_bears_an_overflow_again_once_it_has_been_doubled",
        why="the demo has a hysteresis of 1",
    ),
    Mutation(
        "minitrain.precision.accumulate.softmax",
        "wide - wide.amax(-1, keepdim=True)",
        "wide",
        test=f"{TESTS}::test_small_and_large_numbers",
        why="scores of the demo are small",
    ),
    Mutation(
        "minitrain.lessons.precision.common.differing",
        "dist.ReduceOp.MIN",
        "dist.ReduceOp.SUM",
        "minitrain.precision.mixed",
        "weights that differ between ranks",
    ),
    Mutation(
        "minitrain.lessons.precision.mixed.demo",
        "0.5 * CLIP",
        "CLIP",
        "minitrain.precision.mixed",
        "length of an SGD step",
    ),
]
