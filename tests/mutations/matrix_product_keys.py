"""Mistakes by which key claims of the chapter matrix product turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.matrix_product"
THEORY = "minitrain.costs"
LESSONS = "minitrain.lessons.matrix_product"

MUTATIONS = [
    # The last rank sends, too.
    Mutation(
        f"{LESSONS}.first_messages.demo",
        "int(rank < ranks - 1)",
        "1",
        f"{HOME}.first_messages",
        "relay: bytes and messages",
    ),
    # Only rank 0 sends first, so that each waits for the one before it.
    Mutation(
        f"{HOME}.first_messages.shift_in_turn",
        "rank % 2 == 0",
        "rank == 0",
        f"{HOME}.first_messages",
        "in turn: time until",
    ),
    # One direction after the other.
    Mutation(
        f"{HOME}.first_messages.shift_at_once",
        "incoming = torch.empty_like(tensor)",
        "return shift_in_turn(tensor, group)",
        f"{HOME}.first_messages",
        "at once: time until",
    ),
    # W is added up, though every rank has all of it.
    Mutation(
        f"{HOME}.by_data.forward", "return x @ w", "return x @ total(w, group)", f"{HOME}.by_data", "bytes sent forward"
    ),
    # All columns of W.
    Mutation(
        f"{THEORY}.matrix_product.by_columns",
        "inner * share(columns, ranks, rank)",
        "inner * columns",
        f"{HOME}.by_columns",
        "bytes held of X",
    ),
    # X is added up, though every rank has all of it.
    Mutation(
        f"{HOME}.by_columns.forward",
        "return x @ w",
        "return total(x, group) @ w",
        f"{HOME}.by_columns",
        ("bytes sent forward", "elements of Y"),
    ),
    # ∂Y is added up, though every rank has all of it.
    Mutation(
        f"{HOME}.by_rows.backward",
        "grad_x = grad_y @ w.T",
        "grad_x = total(grad_y, group) @ w.T",
        f"{HOME}.by_rows",
        "bytes sent backward",
    ),
]
