"""Mistakes by which what the tour claims besides the demos turns false."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("tour", "weights differ between ranks"),
    ("composition.gradients.Replicated._average", "return self.sharers.all_reduce(flat)", "return Handle((), flat)"),
    by_claim("tour", "steps until a GPT predicts"),
    ("composition.optimizer.learning_rate", "done(number, steps.warmup, steps.steps)", "done(number, 0, steps.warmup)"),
)
