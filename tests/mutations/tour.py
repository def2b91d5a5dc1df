"""Mistakes by which what the tour claims besides the demos turns false."""

from tests.mutations import TOUR, Mutation

MUTATIONS = [
    # Each rank keeps its own gradient.
    Mutation(
        "minitrain.composition.gradients.Replicated._average",
        "return self.sharers.all_reduce(flat)",
        "return Handle((), flat)",
        TOUR,
        ("weights differ between ranks", "losses of 20 steps in each layout"),
    ),
    # The rate falls to 0 while it should rise.
    Mutation(
        "minitrain.composition.optimizer.learning_rate",
        "schedules.done(number, steps.warmup, steps.steps)",
        "schedules.done(number, 0, steps.warmup)",
        TOUR,
        "steps until a GPT predicts",
    ),
]
