"""Mistakes by which key claims of the chapter parameter server turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("parameter_server.synchronous", "small form: bytes through"),
    # The server as one of the workers.
    ("lessons.parameter_server.synchronous.demo", "2 * size * (n if", "2 * size * (world.size if"),
    by_claim("parameter_server.synchronous", "small form: weights that differ"),
    # The optimizer steps the flat tensor, which has no gradient.
    ("parameter_server.synchronous.Server.__init__", "(module.parameters())", "([self.flat])"),
    by_claim("parameter_server.asynchronous", "parameters that differ"),
    # The loss of another step: the server's log is replayed with other gradients.
    ("lessons.parameter_server.runs.versions_of", "update.worker, update.step", "update.worker, update.step + 1"),
    by_claim("parameter_server.asynchronous", "most steps that a worker"),
    # As if the step that begins were done.
    ("lessons.parameter_server.asynchronous.most_ahead", "update.step - min(there)", "update.step + 1 - min(there)"),
    by_claim("parameter_server.asynchronous", "updates that the stalest"),
    # No worker waits for the slowest.
    ("parameter_server.asynchronous.AsynchronousServer.may_begin", "lead <= self.staleness", "True"),
)
