"""Mistakes by which key claims of the chapter composition turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.composition"
AXES = f"{HOME}.three_axes"

MUTATIONS = [
    # Each rank keeps its own gradient.
    Mutation(
        f"{HOME}.gradients.Replicated._average",
        "return self.sharers.all_reduce(flat)",
        "return Handle((), flat)",
        f"{HOME}.step",
        "weights after 2",
    ),
    # Every replica takes the first one's samples.
    Mutation(f"{AXES}.Training.step", "[replica].chunk", "[0].chunk", AXES, "weights after 2"),
    # The norm of this stage alone.
    Mutation(f"{AXES}.Training.step", "all_reduce(square, self.pp).wait()", "pass", AXES, "weights after 2"),
    # Each rank averages over the wrong axis.
    Mutation(f"{AXES}.Training.step", "all_reduce(p.grad, self.dp)", "all_reduce(p.grad, self.tp)", AXES, "dp: bytes"),
    # The whole model stays on every rank.
    Mutation(f"{AXES}.Training.__init__", "parallelize(gpt, self.tp)", "pass", AXES, "bytes of weights"),
    # An MLP that is not wide.
    Mutation(
        "minitrain.costs.composition.Shape.mlp_width",
        "4 * self.hidden",
        "self.hidden",
        AXES,
        "bytes of weights",
    ),
    # Every replica takes the whole batch.
    Mutation(f"{AXES}.Training.step", "each.chunk(replicas)[replica]", "each", AXES, "pp: bytes"),
]
