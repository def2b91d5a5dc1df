"""Mistakes in the chapter of the matrix product."""

FOUND_BY = {
    ("matrix_product.by_data", "elements of Y"): [
        ("matrix_product.by_data.backward", "total(grad_w, group)", "grad_w"),
    ],
    ("matrix_product.by_data", "bytes held"): [
        ("matrix_product.by_data.hold", "x.tensor_split(ranks, dim=0)[rank].clone()", "x.tensor_split(ranks)[rank]"),
        ("costs.matrix_product.share", "1 if rank < size % ranks else 0", "1 if size % ranks else 0"),
    ],
    ("matrix_product.by_columns", "bytes sent backward"): [
        ("matrix_product.by_columns.backward", "total(grad_x, group)", "grad_x"),
    ],
    ("matrix_product.by_rows", "elements of Y", "bytes sent forward"): [
        ("matrix_product.by_rows.forward", "total(summand, group)", "summand"),
    ],
    ("matrix_product.to_everyone", "elements of the sum"): [
        ("matrix_product.to_everyone.total", "for summand in summands", "for summand in summands[1:]"),
        ("matrix_product.to_everyone.total", "result += summand", "result = summand"),
    ],
    ("matrix_product.to_everyone", "elements of the parts"): [
        ("matrix_product.to_everyone.collect", "torch.cat(parts, dim)", "torch.cat(parts[::-1], dim)"),
    ],
    ("matrix_product.first_messages", "relay: elements"): [
        ("matrix_product.first_messages.relay", "send(carried", "send(tensor"),
    ],
    ("matrix_product.first_messages", "in turn, and at once: elements"): [
        (
            "matrix_product.first_messages.shift_at_once",
            "exchange(tensor, (rank + 1) % ranks, incoming, (rank - 1) % ranks",
            "exchange(tensor, (rank - 1) % ranks, incoming, (rank + 1) % ranks",
        ),
    ],
    ("matrix_product.memory", "bytes of activations, fused"): [
        ("matrix_product.memory.one_step", "SavedActivations(model)", "SavedActivations()"),
        ("costs.memory.gpt_layer_activations", "batch * heads * seq * item", "batch * seq * hidden * item"),
    ],
    ("matrix_product.to_everyone", "sum: bytes sent", "parts: bytes sent"): [
        ("costs.matrix_product.to_everyone_bytes", "(ranks - 1)", "ranks"),
    ],
    ("matrix_product.by_data", "bytes sent backward"): [
        ("costs.matrix_product.by_data", "to_everyone_bytes(inner * columns", "to_everyone_bytes(rows * inner"),
    ],
    ("matrix_product.by_columns", "bytes sent back"): [
        ("costs.matrix_product.by_columns", "(rows * inner, ranks, item)", "(rows * inner, ranks)"),
    ],
    ("matrix_product.by_rows", "bytes held"): [
        ("costs.matrix_product.by_rows", "rows * mine + mine * columns", "rows * mine + inner * columns"),
    ],
    ("matrix_product.memory", "bytes of parameters"): [
        ("costs.memory.gpt_layer_parameters", "(4 * hidden + hidden)", "4 * hidden"),
        ("costs.memory.gpt_parameters", "vocabulary + positions", "vocabulary"),
    ],
    ("matrix_product.memory", "bytes of optimizer states"): [
        ("costs.memory.adamw_bytes", "+ 4 * tensors", "+ 8 * tensors"),
        ("costs.memory.gpt_tensors", "16 * layers + 4", "16 * layers + 2"),
    ],
    ("matrix_product.memory", "bytes of model states"): [
        ("costs.memory.model_state_bytes", "optimizer_bytes) * ", "gradient_bytes) * "),
    ],
    ("matrix_product.memory", "bytes of activations, attention"): [
        ("costs.memory.gpt_activations", "2 * batch * seq)", "batch * seq)"),
    ],
}
