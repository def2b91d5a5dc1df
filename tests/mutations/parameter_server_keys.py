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
        "small form: weights that differ",
    ),
    # The loss of another step: the server's log is replayed with other gradients.
    Mutation(
        f"{LESSONS}.runs.versions_of",
        "update.worker, update.step",
        "update.worker, update.step + 1",
        f"{HOME}.asynchronous",
        "parameters that differ",
    ),
    # As if the step that begins were done.
    Mutation(
        f"{LESSONS}.asynchronous.most_ahead",
        "update.step - min(there)",
        "update.step + 1 - min(there)",
        f"{HOME}.asynchronous",
        "most steps that a worker",
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
