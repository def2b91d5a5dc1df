"""Mistakes by which key claims of the chapter optimizers turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.optimizers"

MUTATIONS = [
    # One second moment for all elements that are stepped together.
    Mutation(
        f"{HOME}.adam.Adam.step",
        "(v_hat.sqrt() + self.eps)",
        "(v_hat.mean().sqrt() + self.eps)",
        f"{HOME}.adam",
        "elements that differ",
    ),
    # One second moment for all elements that are stepped together.
    Mutation(
        f"{HOME}.adam8bit.Adam8bit.step",
        "(v_hat.sqrt() + self.eps)",
        "(v_hat.mean().sqrt() + self.eps)",
        f"{HOME}.adam8bit",
        "elements that differ after",
    ),
]
