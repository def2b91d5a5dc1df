"""Mistakes in the full form of the parameter server."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.parameter_server.full.inbox.Inbox.take",
        "(m.left, m.kind, m.worker)",
        "(m.kind, m.left, m.worker)",
        "minitrain.parameter_server.asynchronous",
        "updates in 32 virtual seconds",
    ),
]
