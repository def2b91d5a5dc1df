"""Mistakes in the chapter of precision."""

from tests.mutations import Mutation

HOME, THEORY = "minitrain.precision", "minitrain.costs.precision"
FORMATS, MASTERS, SCALING, SUMS, MIXED, FP8, QUANTIZED = (
    f"{HOME}.{name}"
    for name in (
        "formats",
        "master_weights",
        "loss_scaling",
        "accumulate",
        "mixed",
        "fp8",
        "quantized_gradients",
    )
)
TESTS = "tests/precision/test_precision.py"

MUTATIONS = [
    # Practice.
    Mutation(f"{FORMATS}.Format.largest", "2.0**self.bias", "2.0 ** (self.bias + 1)", FORMATS, "largest, smallest"),
    Mutation(f"{FORMATS}.Format.smallest_normal", "1 - self.bias", "-self.bias", FORMATS, "largest, smallest"),
    Mutation(f"{FORMATS}.round_to", "(x / spacing).round()", "(x / spacing + 0.5).floor()", FORMATS, "numbers rounded"),
    Mutation(f"{FORMATS}.round_to", "exponent.clamp(min=1 - to.bias)", "exponent", FORMATS, "numbers rounded"),
    Mutation(f"{FORMATS}.encode", "to.bias - 1", "to.bias", FORMATS, "numbers whose bits"),
    Mutation(
        f"{MASTERS}.MasterWeights.step", "self.optimizer.step()", "pass", MASTERS, "weight after updates of u, with"
    ),
    Mutation(
        f"{MASTERS}.MasterWeights.step",
        "parameter.copy_(master)",
        "pass",
        MASTERS,
        "weight after updates of u, with a copy",
    ),
    Mutation(
        f"{SCALING}.LossScale.unscale", "gradient /= self.scale", "gradient /= 2 * self.scale", SCALING, "weight aft"
    ),
    Mutation(
        f"{SCALING}.LossScale.unscale",
        "all_reduce(found, self.group, op=dist.ReduceOp.MAX).wait()",
        "found",
        SCALING,
        "steps that this rank skips",
    ),
    Mutation(f"{SCALING}.LossScale.update", "self.scale / 2", "self.scale / 4", SCALING, "scale afterwards"),
    Mutation(f"{SCALING}.LossScale.update", "self.clean += 1", "pass", SCALING, "scale afterwards"),
    Mutation(
        f"{SCALING}.LossScale.update",
        "self.left <= 0",
        "True",
        test=TESTS,
        why="the demo has a hysteresis of 1",
    ),
    Mutation(f"{SUMS}.running_sum", "x.to(dtype)", "x", SUMS, "sum of ones"),
    Mutation(f"{SUMS}.rms_norm", "wide = x.float()", "wide = x", SUMS, "relative error of norm"),
    Mutation(f"{SUMS}.softmax", "wide = x.float()", "wide = x", SUMS, "relative error of norm"),
    Mutation(f"{SUMS}.cross_entropy", "wide = logits.float()", "wide = logits", test=TESTS, why="the demo has no loss"),
    Mutation(
        f"{MIXED}.MixedPrecision.step", "parameter.grad /= self.ranks", "pass", test=TESTS, why="clipping hides it"
    ),
    Mutation(
        f"{MIXED}.MixedPrecision.step", "parameter.copy_(master)", "pass", test=TESTS, why="the module is not looked at"
    ),
    Mutation(
        f"{MIXED}.MixedPrecision.step",
        "parameter.grad = parameter.grad.float(), None",
        "parameter.grad = parameter.grad.float() * 2, None",
        test=TESTS,
        why="clipping hides it",
    ),
    Mutation(f"{MIXED}.MixedPrecision.step", "self.optimizer.step()", "pass", MIXED, "length of an SGD step"),
    Mutation(
        f"{MIXED}.MixedPrecision.step", "(self.masters, clip)", "(self.masters, 2 * clip)", MIXED, "length of an SGD"
    ),
    Mutation(f"{FP8}.Scale.quantize", "before / largest", "2 * before / largest", FP8, "largest number of a tensor"),
    Mutation(
        f"{FP8}.Scale.quantize",
        "self.amax.append(now)",
        "pass",
        test=f"{TESTS}::test_a_delayed_scale_is_after_the_largest_of_the_calls_before",
        why="the demo has no calls before",
    ),
    Mutation(f"{FP8}.product", "a_scale * b_scale", "a_scale", FP8, "error of a layer's output"),
    Mutation(f"{FP8}.Linear.backward", "x8.t(), sx, g8, sg", "x8.t(), sx, g8, sx", FP8, "error of a layer's output"),
    Mutation(f"{QUANTIZED}.quantize", "/ 127", "/ 100", test=f"{TESTS}::test_bytes_and_back", why="others are bounds"),
    Mutation(
        f"{QUANTIZED}.all_reduce",
        "cut(gradient + residual, ranks)",
        "cut(gradient.clone(), ranks)",
        QUANTIZED,
        "all that was received",
    ),
    Mutation(f"{QUANTIZED}.all_reduce", "messages[rank] = rounded(rank)", "pass", QUANTIZED, "all that was received"),
    Mutation(
        f"{MASTERS}.MasterWeights.step",
        "parameter.grad.float()",
        "2 * parameter.grad.float()",
        MASTERS,
        "weight after updates of u, with a copy",
    ),
    # Theory.
    Mutation(f"{THEORY}.quantized_bytes", "elements + 4", "4", QUANTIZED, "bytes that a rank sends per step"),
    Mutation(
        f"{THEORY}.always_lost_below", "mantissa + 2", "mantissa + 1", MASTERS, "significands that stay, update of 2"
    ),
    Mutation(
        f"{THEORY}.never_lost_above", "mantissa + 1", "mantissa + 2", MASTERS, "significands that stay, updates between"
    ),
    Mutation(f"{THEORY}.lost", "k % 2 == 0", "k % 2 == 1", MASTERS, "significands that stay, updates between"),
    Mutation(f"{THEORY}.sum_stops_at", "mantissa + 1", "mantissa", SUMS, "sum of ones"),
    Mutation(f"{THEORY}.flushed_below", "- mantissa - 1", "- mantissa", SCALING, "gradients of a GPT"),
    Mutation(
        f"{THEORY}.accumulation_error",
        "part / (1 - part)",
        "part / 1e6",
        SUMS,
        "error of a dot product",
    ),
    Mutation(
        f"{THEORY}.quantized_bytes", "4 * -(-elements // block)", "0", QUANTIZED, "bytes that a rank sends per step"
    ),
    Mutation(f"{THEORY}.quantized_ring", "- sizes[rank]", "", QUANTIZED, "bytes that a rank sends per step"),
]
