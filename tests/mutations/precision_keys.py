"""Mistakes by which key claims of the chapter precision turn false that no other mutation names."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("precision.master_weights", "significands that stay, updates between"),
    # Updates are taken away, and below 1 numbers are closer to each other.
    ("lessons.precision.master_weights.vanished", "1 + ratio", "1 - ratio"),
    by_claim("precision.master_weights", "weight after updates of u, without"),
    # An update that is twice as large does not vanish.
    ("lessons.precision.master_weights.demo", "2.0 ** -(each.mantissa + 1)", "2.0**-each.mantissa"),
    by_claim("precision.loss_scaling", "weights that differ"),
    # Each rank skips for itself.
    ("precision.loss_scaling.LossScale.unscale", "all_reduce(found, self.group, op=dist.ReduceOp.MAX).wait()", "found"),
    by_claim("precision.accumulate", "elements that become"),
    # Squares in float32, where float16 is to be shown.
    ("lessons.precision.accumulate.demo", "naive = x / x.square()", "naive = x / x.float().square()"),
    by_claim("precision.mixed", "bytes per step", "bytes per parameter", "weights that a step"),
    # The module stays in float32.
    ("precision.mixed.MixedPrecision.__init__", "module.to(dtype)", "module"),
    by_claim("precision.mixed", "weights that differ"),
    # Gradients of this rank only.
    ("precision.mixed.MixedPrecision.step", "all_reduce(parameter.grad, self.group).wait()", "pass"),
    by_claim("precision.fp8", "relative error of its normal"),
    # A rounding to float16 before that to 8 bits.
    ("precision.fp8.Scale.quantize", "x.float() / scale", "x.half() / scale"),
    by_test(
        "tests/precision/test_precision.py::test_a_delayed_scale_is_after_the_largest_of_the_calls_before",
        "the demo has no calls before",
    ),
    # The scale of this tensor, not of those before it.
    ("precision.fp8.Scale.quantize", "max(self.amax) if self.delayed and self.amax else now", "now"),
    by_claim("precision.fp8", "bytes kept for backward"),
    # Backward keeps what has not been rounded.
    ("precision.fp8.Linear.forward", "ctx.save_for_backward(x8, w8)", "ctx.save_for_backward(x, weight)"),
    by_claim("precision.quantized_gradients", "elements that differ"),
    # A rank keeps its own chunk as it was before the rounding.
    ("precision.quantized_gradients.all_reduce", "dequantize(m, len", "c if c is chunks[rank] else dequantize(m, len"),
    by_claim("precision.quantized_gradients", "received less gradients"),
    # Error feedback turned round: what a rounding has lost is taken away once more.
    (
        "precision.quantized_gradients.all_reduce",
        "lost[number].copy_(chunks[number] - dequantize(message, len(chunks[number])))",
        "lost[number].copy_(dequantize(message, len(chunks[number])) - chunks[number])",
    ),
)
