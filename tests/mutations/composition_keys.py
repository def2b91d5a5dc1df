"""Mistakes by which key claims of the chapter composition turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.composition"

MUTATIONS = [
    # Each rank keeps its own gradient.
    Mutation(
        f"{HOME}.gradients.Replicated._average",
        "return self.sharers.all_reduce(flat)",
        "return Handle((), flat)",
        f"{HOME}.step",
        "weights after 2",
    ),
]
