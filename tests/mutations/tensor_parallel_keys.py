"""Mistakes by which key claims of the chapter tensor parallel turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.tensor_parallel"
FULL = "minitrain.tensor_parallel.full"
THEORY = "minitrain.costs"
LESSONS = "minitrain.lessons.tensor_parallel"

MUTATIONS = [
    # Gradients are added up in float64.
    Mutation(
        f"{FULL}.mappings._reduce",
        "x.clone(",
        "x.double().clone(",
        f"{HOME}.mappings",
        "bytes sent by this rank, f",
    ),
    # Gradients are gathered in float64.
    Mutation(
        f"{FULL}.mappings._gather",
        "x.new_empty(comm.ranks, *x.shape)",
        "x.new_empty(comm.ranks, *x.shape, dtype=torch.float64)",
        f"{HOME}.mappings",
        "bytes sent by this rank, split",
    ),
    # f is left out: a rank's part of the gradient for the sum.
    Mutation(
        f"{HOME}.linear.ColumnParallelLinear.forward",
        "copy_to_parallel(x, self.group)",
        "x",
        f"{HOME}.linear",
        "column-parallel, small and full",
    ),
    # Once around the ring only.
    Mutation(
        f"{THEORY}.communication.ring_all_reduce",
        "return reduce_scatter + ring_all_gather(elements, item_size, ranks, rank)",
        "return reduce_scatter",
        f"{HOME}.mappings",
        "bytes sent by this rank, f backward",
    ),
    # g is left out: a rank's partial sum for the sum.
    Mutation(
        f"{HOME}.linear.RowParallelLinear.forward",
        "reduce_from_parallel(y, self.group)",
        "y",
        f"{HOME}.linear",
        "row-parallel, small and full",
    ),
    # f is left out.
    Mutation(
        f"{HOME}.vocab_parallel.VocabParallelHead.forward",
        "copy_to_parallel(x, self.group)",
        "x",
        f"{HOME}.vocab_parallel",
        "small form, embedding",
    ),
    # Padding has logits of 0.
    Mutation(
        f"{HOME}.vocab_parallel.VocabParallelHead.forward",
        "return logits.masked_fill(token >= self.vocabulary, -torch.inf)",
        "return logits",
        f"{HOME}.vocab_parallel",
        "padding: elements of its gradient",
    ),
    # Backward asks once more for sums that forward has merged already.
    Mutation(
        f"{HOME}.cross_entropy.CrossEntropy.backward",
        "div_(s.unsqueeze(-1))",
        "div_(all_gather(s).wait()[: len(s)].unsqueeze(-1))",
        f"{HOME}.cross_entropy",
        "communications, loss backward",
    ),
    # The MLPs are forgotten.
    Mutation(
        f"{HOME}.full.parallelize.plan",
        "made[name] = ParallelMLP(part, comm)",
        "pass",
        f"{HOME}.gpt",
        ("bytes sent by this rank, forward", "bytes sent by this rank, backward", "bytes of parameters"),
    ),
    # torch's dropout, which depends on what a rank has drawn before.
    Mutation(
        f"{HOME}.dropout_rng.ResidualDropout.forward",
        "drop(x, self.p, self.site, first + positions.view(-1, 1), torch.arange(hidden, device=x.device))",
        "nn.functional.dropout(x, self.p)",
        f"{HOME}.dropout_rng",
        "residual stream: elements",
    ),
    # Another seed on each rank, where one for all is to be shown.
    Mutation(
        f"{LESSONS}.dropout_rng.demo",
        "torch.manual_seed(0)",
        "torch.manual_seed(rank)",
        f"{HOME}.dropout_rng",
        "one seed for all",
    ),
    # One seed for all, where another on each rank is to be shown.
    Mutation(
        f"{LESSONS}.dropout_rng.demo",
        "torch.manual_seed(rank)",
        "torch.manual_seed(0)",
        f"{HOME}.dropout_rng",
        "a seed for each rank",
    ),
    # Squares are added up in float32.
    Mutation(
        f"{HOME}.clip_grad_norm.gradient_norm",
        "torch.zeros((), dtype=torch.float64",
        "torch.zeros((), dtype=torch.float32",
        f"{HOME}.clip_grad_norm",
        "payload of all-reduces",
    ),
    # All n copies on top of the one that counts.
    Mutation(
        f"{LESSONS}.clip_grad_norm.demo",
        "(world.size - 1) * whole",
        "world.size * whole",
        f"{HOME}.clip_grad_norm",
        "norm, if every rank",
    ),
    # Every block gets the last block's MLP, or its attention.
    Mutation(
        f"{HOME}.gpt.parallelize",
        "make(part, group)",
        "make(gpt.blocks[-1].mlp if name.endswith('.mlp') else part, group)",
        f"{HOME}.gpt",
        "small form: distance of loss",
    ),
    Mutation(
        f"{HOME}.gpt.parallelize",
        "make(part, group)",
        "make(gpt.blocks[-1].attention if name.endswith('.attention') else part, group)",
        f"{HOME}.gpt",
        "small form: distance of loss",
    ),
    # The ends share a table whose rows have moved by one.
    Mutation(
        f"{HOME}.gpt.parallelize",
        "gpt.head.weight = gpt.embedding.tokens.weight",
        "gpt.head.weight = gpt.embedding.tokens.weight; gpt.head.weight.data = gpt.head.weight.data.roll(1, 0)",
        f"{HOME}.gpt",
        "small form: distance of loss",
    ),
]
