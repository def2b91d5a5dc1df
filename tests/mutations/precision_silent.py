"""Mistakes in the chapter of precision that only a second case shows: ties, sizes of numbers, a step later."""

from tests.mutations import Mutation

HOME = "minitrain.precision"
MASTERS, MIXED = (f"{HOME}.{name}" for name in ("master_weights", "mixed"))

MUTATIONS = [
    Mutation(
        f"{MIXED}.MixedPrecision.step",
        "parameter.grad.float(), None",
        "parameter.grad.float(), parameter.grad",
        MIXED,
        "bytes per parameter when the optimizer steps",
    ),
    Mutation(f"{MASTERS}.MasterWeights.step", "master.grad = None  # as", "pass  # as", MASTERS, "bytes per parameter"),
]
