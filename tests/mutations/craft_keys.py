"""Mistakes by which key claims of the chapter craft turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.craft"
LESSONS = "minitrain.lessons.craft"

MUTATIONS = [
    # The mean of a pair's losses for their sum.
    Mutation(
        f"{LESSONS}.loss_by_source.demo",
        ".view(-1, 2).sum(1)",
        ".view(-1, 2).mean(1)",
        f"{HOME}.loss_by_source",
        "bits per byte",
    ),
    # The loss for the probability's logarithm.
    Mutation(
        f"{HOME}.probes.log_probability",
        "return each",
        "return -each",
        f"{HOME}.probes",
        ("probabilities of all tokens", "log-probability of a frequent", "how much likelier"),
    ),
    # The mean for the sum: longer continuations would not be less likely.
    Mutation(
        f"{HOME}.probes.log_probability",
        ".sum().item()",
        ".mean().item()",
        f"{HOME}.probes",
        "a continuation's log-probability",
    ),
    # A spike begins one deviation above the median, not six.
    Mutation(
        f"{HOME}.spikes.Spikes.limit", "self.threshold * deviation", "deviation", f"{HOME}.spikes", "spikes in 80 steps"
    ),
    # A variance for the standard deviation.
    Mutation(
        f"{LESSONS}.spikes.by_mean",
        "statistics.pstdev(window)",
        "statistics.pvariance(window)",
        f"{HOME}.spikes",
        "spikes in the window that hide the next one, by mean",
    ),
    # All batches since the checkpoint are left out.
    Mutation(
        f"{HOME}.rewind.train",
        "left_out.append(number)",
        "left_out += range(begin, number + 1)",
        f"{HOME}.rewind",
        ("batches left out", "steps whose loss", "steps taken, those that were"),
    ),
    # The rate rises for ever.
    Mutation(
        f"{HOME}.schedules.warm_up",
        "min(1.0, (step + 1) / (warmup + 1))",
        "(step + 1) / (warmup + 1)",
        f"{HOME}.schedules",
        ("noise that stays", "the same after"),
    ),
    # The cosine begins with the warm-up.
    Mutation(
        f"{HOME}.schedules.cosine",
        "done(step, warmup, steps)",
        "done(step, 0, steps)",
        f"{HOME}.schedules",
        "steps that runs of 200 and 400 steps have in common, cosine",
    ),
    # Equal lines that are two objects count as different.
    Mutation(
        f"{HOME}.first_difference.first_difference",
        "mine != theirs",
        "mine is not theirs",
        f"{HOME}.first_difference",
        ("step named, of a mistake", "differences of two runs"),
    ),
    # The loss is forgotten.
    Mutation(
        f"{HOME}.first_difference.lines",
        'yield f"{step} loss {fingerprint(loss)}"',
        "pass",
        f"{HOME}.first_difference",
        "wrong names",
    ),
    # g for f: what all ranks have is added up, and its gradient is not.
    Mutation(
        "minitrain.tensor_parallel.linear.ColumnParallelLinear.forward",
        "copy_to_parallel(x",
        "reduce_from_parallel(x",
        f"{HOME}.engine",
        ("parallel layers: the same", "parallel layers: of activations"),
    ),
    # A view, which keeps the whole matrix.
    Mutation(
        "minitrain.tensor_parallel.linear.shard",
        "part.clone(memory_format=torch.contiguous_format)",
        "part",
        f"{HOME}.engine",
        "parallel layers: bytes",
    ),
]
