"""Mistakes in the full form of the parameter server."""

FOUND_BY = {
    ("parameter_server.asynchronous", "updates in 32 virtual seconds"): [
        ("parameter_server.full.inbox.Inbox.take", "(m.left, m.kind, m.worker)", "(m.kind, m.left, m.worker)"),
    ],
}
