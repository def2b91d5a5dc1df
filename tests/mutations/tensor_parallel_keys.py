"""Mistakes by which key claims of the chapter tensor parallel turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("tensor_parallel.mappings", "bytes sent by this rank, f"),
    # Gradients are added up in float64.
    ("tensor_parallel.full.mappings._reduce", "x.clone(", "x.double().clone("),
    by_claim("tensor_parallel.mappings", "bytes sent by this rank, split"),
    # Gradients are gathered in float64.
    ("tensor_parallel.full.mappings._gather", "(comm.ranks, *x.shape)", "(comm.ranks, *x.shape, dtype=torch.float64)"),
    by_claim("tensor_parallel.linear", "column-parallel, small and full"),
    # f is left out: a rank's part of the gradient for the sum.
    ("tensor_parallel.linear.ColumnParallelLinear.forward", "copy_to_parallel(x, self.group)", "x"),
    by_claim("tensor_parallel.mappings", "bytes sent by this rank, f backward"),
    # Once around the ring only.
    (
        "costs.communication.ring_all_reduce",
        "return reduce_scatter + ring_all_gather(elements, item_size, ranks, rank)",
        "return reduce_scatter",
    ),
    by_claim("tensor_parallel.linear", "row-parallel, small and full"),
    # g is left out: a rank's partial sum for the sum.
    ("tensor_parallel.linear.RowParallelLinear.forward", "reduce_from_parallel(y, self.group)", "y"),
    by_claim("tensor_parallel.vocab_parallel", "small form, embedding"),
    # f is left out.
    ("tensor_parallel.vocab_parallel.VocabParallelHead.forward", "copy_to_parallel(x, self.group)", "x"),
    by_claim("tensor_parallel.vocab_parallel", "padding: elements of its gradient"),
    # Padding has logits of 0.
    (
        "tensor_parallel.vocab_parallel.VocabParallelHead.forward",
        "return logits.masked_fill(token >= self.vocabulary, -torch.inf)",
        "return logits",
    ),
    by_claim("tensor_parallel.cross_entropy", "communications, loss backward"),
    # Backward asks once more for sums that forward has merged already.
    ("tensor_parallel.cross_entropy.CrossEntropy.backward", "s.unsqueeze", "all_gather(s).wait()[: len(s)].unsqueeze"),
    by_claim(
        "tensor_parallel.gpt",
        "bytes sent by this rank, forward",
        "bytes sent by this rank, backward",
        "bytes of parameters",
    ),
    # The MLPs are forgotten.
    ("tensor_parallel.full.parallelize.plan", "made[name] = ParallelMLP(part, comm)", "pass"),
    by_claim("tensor_parallel.dropout_rng", "residual stream: elements"),
    # torch's dropout, which depends on what a rank has drawn before.
    (
        "tensor_parallel.dropout_rng.ResidualDropout.forward",
        "drop(x, self.p, self.site, first + positions.view(-1, 1), torch.arange(hidden, device=x.device))",
        "nn.functional.dropout(x, self.p)",
    ),
    by_claim("tensor_parallel.dropout_rng", "one seed for all"),
    # Another seed on each rank, where one for all is to be shown.
    ("lessons.tensor_parallel.dropout_rng.demo", "torch.manual_seed(0)", "torch.manual_seed(rank)"),
    by_claim("tensor_parallel.dropout_rng", "a seed for each rank"),
    # One seed for all, where another on each rank is to be shown.
    ("lessons.tensor_parallel.dropout_rng.demo", "torch.manual_seed(rank)", "torch.manual_seed(0)"),
    by_claim("tensor_parallel.clip_grad_norm", "payload of all-reduces"),
    # Squares are added up in float32.
    ("tensor_parallel.clip_grad_norm.gradient_norm", "zeros((), dtype=torch.float64", "zeros((), dtype=torch.float32"),
    by_claim("tensor_parallel.clip_grad_norm", "norm, if every rank"),
    # All n copies on top of the one that counts.
    ("lessons.tensor_parallel.clip_grad_norm.demo", "(world.size - 1) * whole", "world.size * whole"),
    by_claim("tensor_parallel.gpt", "small form: distance of loss"),
    # Every block gets the last block's MLP, or its attention.
    ("tensor_parallel.gpt.parallelize", "part, group", "gpt.blocks[-1].mlp if name.endswith('.mlp') else part, group"),
    ("tensor_parallel.gpt.parallelize", "part,", "gpt.blocks[-1].attention if name.endswith('.attention') else part,"),
    # The ends share a table whose rows have moved by one.
    (
        "tensor_parallel.gpt.parallelize",
        "gpt.head.weight = gpt.embedding.tokens.weight",
        "gpt.head.weight = gpt.embedding.tokens.weight; gpt.head.weight.data = gpt.head.weight.data.roll(1, 0)",
    ),
)
