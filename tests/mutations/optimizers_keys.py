"""Mistakes by which key claims of the chapter optimizers turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("optimizers.adam", "elements that differ"),
    # One second moment for all elements that are stepped together.
    ("optimizers.adam.Adam.step", "(v_hat.sqrt() + self.eps)", "(v_hat.mean().sqrt() + self.eps)"),
    by_claim("optimizers.adam8bit", "elements that differ after"),
    # One second moment for all elements that are stepped together.
    ("optimizers.adam8bit.Adam8bit.step", "(v_hat.sqrt() + self.eps)", "(v_hat.mean().sqrt() + self.eps)"),
)
