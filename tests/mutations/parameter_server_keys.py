"""Mistakes by which key claims of the chapter parameter server turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.parameter_server"
LESSONS = "minitrain.lessons.parameter_server"

MUTATIONS = [
    # The server as one of the workers.
    Mutation(
        f"{LESSONS}.synchronous.demo",
        "2 * size * (n if",
        "2 * size * (world.size if",
        f"{HOME}.synchronous",
        "small form: bytes through",
    ),
    # The optimizer steps the flat tensor, which has no gradient.
    Mutation(
        f"{HOME}.synchronous.Server.__init__",
        "make_optimizer(module.parameters())",
        "make_optimizer([self.flat])",
        f"{HOME}.synchronous",
        "small form: bytes of AdamW's",
    ),
    # As if the server served one worker.
    Mutation(
        f"{LESSONS}.asynchronous.demo",
        "steps * (n if roles.serves else 1), sent",
        "steps, sent",
        f"{HOME}.asynchronous",
        "small form, random delays: bytes",
    ),
    # As if a step of all workers were one update.
    Mutation(
        f"{LESSONS}.asynchronous.demo",
        "*UPDATES, n * steps,",
        "*UPDATES, steps,",
        f"{HOME}.asynchronous",
        "small form, random delays: updates",
    ),
    # No worker waits for the slowest.
    Mutation(
        f"{HOME}.asynchronous.AsynchronousServer.may_begin",
        "lead <= self.staleness",
        "True",
        f"{HOME}.asynchronous",
        "updates that the stalest",
    ),
]
