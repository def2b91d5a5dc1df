"""Mistakes by which key claims of the chapter composition turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("composition.step", "losses, norms"),
    # Each rank keeps its own gradient.
    ("composition.gradients.Replicated._average", "return self.sharers.all_reduce(flat)", "return Handle((), flat)"),
    by_claim("composition.three_axes", "weights after 2"),
    # Every replica takes the first one's samples.
    ("composition.three_axes.Training.step", "[replica].chunk", "[0].chunk"),
    # The norm of this stage alone.
    ("composition.three_axes.Training.step", "all_reduce(square, self.pp).wait()", "pass"),
    by_claim("composition.three_axes", "dp: bytes"),
    # Each rank averages over the wrong axis.
    ("composition.three_axes.Training.step", "all_reduce(p.grad, self.dp)", "all_reduce(p.grad, self.tp)"),
    by_claim("composition.three_axes", "bytes of weights"),
    # The whole model stays on every rank.
    ("composition.three_axes.Training.__init__", "parallelize(gpt, self.tp)", "pass"),
    # An MLP that is not wide.
    ("costs.composition.Shape.mlp_width", "4 * self.hidden", "self.hidden"),
    by_claim("composition.three_axes", "pp: bytes"),
    # Every replica takes the whole batch.
    ("composition.three_axes.Training.step", "each.chunk(replicas)[replica]", "each"),
)
