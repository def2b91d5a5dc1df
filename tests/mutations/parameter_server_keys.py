"""Mistakes by which key claims of the chapter parameter server turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.parameter_server"
LESSONS = "minitrain.lessons.parameter_server"

MUTATIONS = [
    # The server as one of the workers.
    Mutation(
        f"{LESSONS}.small.claims",
        "link = 2 * size * (workers if",
        "link = 2 * size * (world.size if",
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
        f"{LESSONS}.asynchronous.small_claims",
        "size * steps * (workers if roles.serves else 1)",
        "size * steps",
        f"{HOME}.asynchronous",
        "small form, random delays: bytes",
    ),
    # As if a step of all workers were one update.
    Mutation(
        f"{LESSONS}.asynchronous.small_claims",
        "Claim(*SMALL_ROWS[1], workers * steps,",
        "Claim(*SMALL_ROWS[1], steps,",
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
