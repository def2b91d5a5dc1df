"""Mistakes by which key claims of the chapter precision turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.precision"
LESSONS = "minitrain.lessons.precision"

MUTATIONS = [
    # Updates are taken away, and below 1 numbers are closer to each other.
    Mutation(
        f"{LESSONS}.master_weights.vanished",
        "1 + ratio",
        "1 - ratio",
        f"{HOME}.master_weights",
        "significands that stay, updates between",
    ),
    # An update that is twice as large does not vanish.
    Mutation(
        f"{LESSONS}.master_weights.demo",
        "2.0 ** -(each.mantissa + 1)",
        "2.0**-each.mantissa",
        f"{HOME}.master_weights",
        "weight after updates of u, without",
    ),
    # Each rank skips for itself.
    Mutation(
        f"{HOME}.loss_scaling.LossScale.unscale",
        "bool(all_reduce(found, self.group, op=dist.ReduceOp.MAX).wait())",
        "bool(found)",
        f"{HOME}.loss_scaling",
        "weights that differ",
    ),
    # Squares in float32, where float16 is to be shown.
    Mutation(
        f"{LESSONS}.accumulate.demo",
        "naive = x / x.square()",
        "naive = x / x.float().square()",
        f"{HOME}.accumulate",
        "elements that become",
    ),
    # The module stays in float32.
    Mutation(
        f"{HOME}.mixed.MixedPrecision.__init__",
        "module.to(dtype)",
        "module",
        f"{HOME}.mixed",
        ("bytes per step", "bytes per parameter", "weights that a step"),
    ),
    # Gradients of this rank only.
    Mutation(
        f"{HOME}.mixed.MixedPrecision.step",
        "all_reduce(parameter.grad, self.group).wait()",
        "pass",
        f"{HOME}.mixed",
        "weights that differ",
    ),
    # A rounding to float16 before that to 8 bits.
    Mutation(
        f"{HOME}.fp8.Scale.quantize",
        "x.float() / scale",
        "x.half() / scale",
        f"{HOME}.fp8",
        "relative error of its normal",
    ),
    # The scale of this tensor, not of those before it.
    Mutation(
        f"{HOME}.fp8.Scale.quantize",
        "max(self.amax) if self.delayed and self.amax else now",
        "now",
        test="tests/precision/test_precision.py::test_a_delayed_scale_is_after_the_largest_of_the_calls_before",
        why="the demo has no calls before",
    ),
    # Backward keeps what has not been rounded.
    Mutation(
        f"{HOME}.fp8.Linear.forward",
        "ctx.save_for_backward(x8, w8)",
        "ctx.save_for_backward(x, weight)",
        f"{HOME}.fp8",
        "bytes kept for backward",
    ),
    # A rank keeps its own chunk as it was before the rounding.
    Mutation(
        f"{HOME}.quantized_gradients.all_reduce",
        "torch.cat([dequantize(m, len(c))",
        "torch.cat([c if c is chunks[rank] else dequantize(m, len(c))",
        f"{HOME}.quantized_gradients",
        "elements that differ",
    ),
    # Error feedback turned round: what a rounding has lost is taken away once more.
    Mutation(
        f"{HOME}.quantized_gradients.all_reduce",
        "lost[number].copy_(chunks[number] - dequantize(message, len(chunks[number])))",
        "lost[number].copy_(dequantize(message, len(chunks[number])) - chunks[number])",
        f"{HOME}.quantized_gradients",
        "received less gradients",
    ),
]
