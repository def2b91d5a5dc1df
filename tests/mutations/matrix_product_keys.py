"""Mistakes by which key claims of the chapter matrix product turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("matrix_product.first_messages", "relay: bytes and messages"),
    # The last rank sends, too.
    ("lessons.matrix_product.first_messages.demo", "int(rank < ranks - 1)", "1"),
    by_claim("matrix_product.first_messages", "in turn: time until"),
    # Only rank 0 sends first, so that each waits for the one before it.
    ("matrix_product.first_messages.shift_in_turn", "rank % 2 == 0", "rank == 0"),
    by_claim("matrix_product.first_messages", "at once: time until"),
    # One direction after the other.
    (
        "matrix_product.first_messages.shift_at_once",
        "incoming = torch.empty_like(tensor)",
        "return shift_in_turn(tensor, group)",
    ),
    by_claim("matrix_product.by_data", "bytes sent forward"),
    # W is added up, though every rank has all of it.
    ("matrix_product.by_data.forward", "return x @ w", "return x @ total(w, group)"),
    by_claim("matrix_product.by_columns", "bytes held of X"),
    # All columns of W.
    ("costs.matrix_product.by_columns", "inner * share(columns, ranks, rank)", "inner * columns"),
    by_claim("matrix_product.by_columns", "bytes sent forward", "elements of Y"),
    # X is added up, though every rank has all of it.
    ("matrix_product.by_columns.forward", "return x @ w", "return total(x, group) @ w"),
    by_claim("matrix_product.by_rows", "bytes sent backward"),
    # ∂Y is added up, though every rank has all of it.
    ("matrix_product.by_rows.backward", "grad_x = grad_y @ w.T", "grad_x = total(grad_y, group) @ w.T"),
)
