"""Mistakes in the full form of the parameter server."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("parameter_server.asynchronous", "updates in 32 virtual seconds"),
    ("parameter_server.full.inbox.Inbox.take", "(m.left, m.kind, m.worker)", "(m.kind, m.left, m.worker)"),
)
