"""Mistakes in the chapter of the matrix product."""

from tests.mutations import Mutation

HOME = "minitrain.matrix_product"
BY_DATA, BY_COLUMNS, BY_ROWS = (f"{HOME}.by_{name}" for name in ("data", "columns", "rows"))
EVERYONE, FIRST, MEMORY = (f"{HOME}.{name}" for name in ("to_everyone", "first_messages", "memory"))
THEORY, BYTES, MODEL = (f"minitrain.costs.{name}" for name in ("matrix_product", "memory", "composition"))

MUTATIONS = [
    # Practice.
    Mutation(f"{BY_DATA}.backward", "total(grad_w, group)", "grad_w", BY_DATA, "elements of Y"),
    Mutation(
        f"{BY_DATA}.hold",
        "x.tensor_split(ranks, dim=0)[rank].clone()",
        "x.tensor_split(ranks)[rank]",
        BY_DATA,
        "bytes held",
    ),
    Mutation(f"{BY_COLUMNS}.backward", "total(grad_x, group)", "grad_x", BY_COLUMNS, "bytes sent backward"),
    Mutation(
        f"{BY_ROWS}.forward", "total(summand, group)", "summand", BY_ROWS, ("elements of Y", "bytes sent forward")
    ),
    Mutation(
        f"{EVERYONE}.total", "for summand in summands", "for summand in summands[1:]", EVERYONE, "elements of the sum"
    ),
    Mutation(
        f"{EVERYONE}.collect", "torch.cat(parts, dim)", "torch.cat(parts[::-1], dim)", EVERYONE, "elements of the parts"
    ),
    Mutation(f"{EVERYONE}.total", "result += summand", "result = summand", EVERYONE, "elements of the sum"),
    Mutation(f"{FIRST}.relay", "send(carried", "send(tensor", FIRST, "relay: elements"),
    Mutation(
        f"{FIRST}.shift_at_once",
        "exchange(tensor, (rank + 1) % ranks, incoming, (rank - 1) % ranks",
        "exchange(tensor, (rank - 1) % ranks, incoming, (rank + 1) % ranks",
        FIRST,
        "in turn, and at once: elements",
    ),
    Mutation(
        f"{MEMORY}.one_step", "SavedActivations(model)", "SavedActivations()", MEMORY, "bytes of activations, fused"
    ),
    # Theory.
    Mutation(f"{THEORY}.share", "1 if rank < size % ranks else 0", "1 if size % ranks else 0", BY_DATA, "bytes held"),
    Mutation(f"{THEORY}.to_everyone_bytes", "(ranks - 1)", "ranks", EVERYONE, ("sum: bytes sent", "parts: bytes sent")),
    Mutation(
        f"{THEORY}.by_data",
        "to_everyone_bytes(inner * columns",
        "to_everyone_bytes(rows * inner",
        BY_DATA,
        "bytes sent backward",
    ),
    Mutation(
        f"{THEORY}.by_columns", "(rows * inner, ranks, item)", "(rows * inner, ranks)", BY_COLUMNS, "bytes sent back"
    ),
    Mutation(
        f"{THEORY}.by_rows", "rows * mine + mine * columns", "rows * mine + inner * columns", BY_ROWS, "bytes held"
    ),
    Mutation(f"{MODEL}._row", "outputs, whole=True", "0, whole=True", MEMORY, "bytes of parameters"),
    Mutation(f"{MODEL}.stage_parameters", "if shape.learned", "if not shape.learned", MEMORY, "bytes of parameters"),
    Mutation(f"{BYTES}.adamw_bytes", "+ 4 * tensors", "+ 8 * tensors", MEMORY, "bytes of optimizer states"),
    Mutation(f"{BYTES}.gpt_tensors", "16 * layers + 4", "16 * layers + 2", MEMORY, "bytes of optimizer states"),
    Mutation(
        f"{BYTES}.model_state_bytes", "optimizer_bytes) * ", "gradient_bytes) * ", MEMORY, "bytes of model states"
    ),
    Mutation(
        f"{BYTES}.gpt_layer_activations",
        "batch * heads * seq * item",
        "batch * seq * hidden * item",
        MEMORY,
        "bytes of activations, fused",
    ),
    Mutation(f"{BYTES}.gpt_activations", "2 * batch * seq)", "batch * seq)", MEMORY, "bytes of activations, attention"),
]
