"""Mistakes in the chapter of precision."""

FOUND_BY = {
    ("precision.formats", "largest, smallest"): [
        ("precision.formats.Format.largest", "2.0**self.bias", "2.0 ** (self.bias + 1)"),
        ("precision.formats.Format.smallest_normal", "1 - self.bias", "-self.bias"),
    ],
    ("precision.formats", "numbers rounded"): [
        ("precision.formats.round_to", "(x / spacing).round()", "(x / spacing + 0.5).floor()"),
        ("precision.formats.round_to", "exponent.clamp(min=1 - to.bias)", "exponent"),
    ],
    ("precision.formats", "numbers whose bits"): [
        ("precision.formats.encode", "to.bias - 1", "to.bias"),
    ],
    ("precision.master_weights", "weight after updates of u, with"): [
        ("precision.master_weights.MasterWeights.step", "self.optimizer.step()", "pass"),
    ],
    ("precision.master_weights", "weight after updates of u, with a copy"): [
        ("precision.master_weights.MasterWeights.step", "parameter.copy_(master)", "pass"),
        ("precision.master_weights.MasterWeights.step", "parameter.grad.float()", "2 * parameter.grad.float()"),
    ],
    ("precision.loss_scaling", "weight aft"): [
        ("precision.loss_scaling.LossScale.unscale", "gradient /= self.scale", "gradient /= 2 * self.scale"),
    ],
    ("precision.loss_scaling", "steps that this rank skips"): [
        (
            "precision.loss_scaling.LossScale.unscale",
            "all_reduce(found, self.group, op=dist.ReduceOp.MAX).wait()",
            "found",
        ),
    ],
    ("precision.loss_scaling", "scale afterwards"): [
        ("precision.loss_scaling.LossScale.update", "self.scale / 2", "self.scale / 4"),
        ("precision.loss_scaling.LossScale.update", "self.clean += 1", "pass"),
    ],
    ("tests/precision/test_precision.py", "the demo has a hysteresis of 1"): [
        ("precision.loss_scaling.LossScale.update", "self.left <= 0", "True"),
    ],
    ("precision.accumulate", "sum of ones"): [
        ("precision.accumulate.running_sum", "x.to(dtype)", "x"),
        ("costs.precision.sum_stops_at", "mantissa + 1", "mantissa"),
    ],
    ("precision.accumulate", "relative error of norm"): [
        ("precision.accumulate.rms_norm", "wide = x.float()", "wide = x"),
        ("precision.accumulate.softmax", "wide = x.float()", "wide = x"),
    ],
    ("tests/precision/test_precision.py", "the demo has no loss"): [
        ("precision.accumulate.cross_entropy", "wide = logits.float()", "wide = logits"),
    ],
    ("tests/precision/test_precision.py", "clipping hides it"): [
        ("precision.mixed.MixedPrecision.step", "parameter.grad /= self.ranks", "pass"),
        ("precision.mixed.MixedPrecision.step", "grad = parameter.grad.float(),", "grad = parameter.grad.float() * 2,"),
    ],
    ("tests/precision/test_precision.py", "the module is not looked at"): [
        ("precision.mixed.MixedPrecision.step", "parameter.copy_(master)", "pass"),
    ],
    ("precision.mixed", "length of an SGD step"): [
        ("precision.mixed.MixedPrecision.step", "self.optimizer.step()", "pass"),
    ],
    ("precision.mixed", "length of an SGD"): [
        ("precision.mixed.MixedPrecision.step", "(self.masters, clip)", "(self.masters, 2 * clip)"),
    ],
    ("precision.fp8", "largest number of a tensor"): [
        ("precision.fp8.Scale.quantize", "before / largest", "2 * before / largest"),
    ],
    (
        "tests/precision/test_precision.py::test_a_delayed_scale_is_after_the_largest_of_the_calls_before",
        "the demo has no calls before",
    ): [
        ("precision.fp8.Scale.quantize", "self.amax.append(now)", "pass"),
    ],
    ("precision.fp8", "error of a layer's output"): [
        ("precision.fp8.product", "a_scale * b_scale", "a_scale"),
        ("precision.fp8.Linear.backward", "x8.t(), sx, g8, sg", "x8.t(), sx, g8, sx"),
    ],
    ("tests/precision/test_precision.py::test_bytes_and_back", "others are bounds"): [
        ("precision.quantized_gradients.quantize", "/ 127", "/ 100"),
    ],
    ("precision.quantized_gradients", "all that was received"): [
        ("precision.quantized_gradients.all_reduce", "cut(gradient + residual, ranks)", "cut(gradient.clone(), ranks)"),
        ("precision.quantized_gradients.all_reduce", "messages[rank] = rounded(rank)", "pass"),
    ],
    ("precision.quantized_gradients", "bytes that a rank sends per step"): [
        ("costs.precision.quantized_bytes", "elements + 4", "4"),
        ("costs.precision.quantized_bytes", "4 * -(-elements // block)", "0"),
        ("costs.precision.quantized_ring", "- sizes[rank]", ""),
    ],
    ("precision.master_weights", "significands that stay, update of 2"): [
        ("costs.precision.always_lost_below", "mantissa + 2", "mantissa + 1"),
    ],
    ("precision.master_weights", "significands that stay, updates between"): [
        ("costs.precision.never_lost_above", "mantissa + 1", "mantissa + 2"),
        ("costs.precision.lost", "k % 2 == 0", "k % 2 == 1"),
    ],
    ("precision.loss_scaling", "gradients of a GPT"): [
        ("costs.precision.flushed_below", "- mantissa - 1", "- mantissa"),
    ],
    ("precision.accumulate", "error of a dot product"): [
        ("costs.precision.accumulation_error", "part / (1 - part)", "part / 1e6"),
    ],
}
