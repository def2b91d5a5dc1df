"""Mistakes by which key claims of the chapter craft turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("craft.loss_by_source", "bits per byte"),
    # The mean of a pair's losses for their sum.
    ("lessons.craft.loss_by_source.demo", ".view(-1, 2).sum(1)", ".view(-1, 2).mean(1)"),
    by_claim("craft.probes", "probabilities of all tokens", "log-probability of a frequent", "how much likelier"),
    # The loss for the probability's logarithm.
    ("craft.probes.log_probability", "return each", "return -each"),
    by_claim("craft.probes", "a continuation's log-probability"),
    # The mean for the sum: longer continuations would not be less likely.
    ("craft.probes.log_probability", ".sum().item()", ".mean().item()"),
    by_claim("craft.spikes", "spikes in 80 steps"),
    # A spike begins one deviation above the median, not six.
    ("craft.spikes.Spikes.limit", "self.threshold * deviation", "deviation"),
    by_claim("craft.spikes", "spikes in the window that hide the next one, by mean"),
    # A variance for the standard deviation.
    ("lessons.craft.spikes.by_mean", "statistics.pstdev(window)", "statistics.pvariance(window)"),
    by_claim("craft.rewind", "batches left out", "steps whose loss", "steps taken, those that were"),
    # All batches since the checkpoint are left out.
    ("craft.rewind.train", "left_out.append(number)", "left_out += range(begin, number + 1)"),
    by_claim("craft.schedules", "noise that stays", "the same after"),
    # The rate rises for ever.
    ("craft.schedules.warm_up", "min(1.0, (step + 1) / (warmup + 1))", "(step + 1) / (warmup + 1)"),
    by_claim("craft.schedules", "steps that runs of 200 and 400 steps have in common, cosine"),
    # The cosine begins with the warm-up.
    ("craft.schedules.cosine", "done(step, warmup, steps)", "done(step, 0, steps)"),
    by_claim("craft.first_difference", "step named, of a mistake", "differences of two runs"),
    # Equal lines that are two objects count as different.
    ("craft.first_difference.first_difference", "mine != theirs", "mine is not theirs"),
    by_claim("craft.first_difference", "wrong names"),
    # The loss is forgotten.
    ("craft.first_difference.lines", 'yield f"{step} loss {fingerprint(loss)}"', "pass"),
    by_claim("craft.engine", "parallel layers: the same", "parallel layers: of activations"),
    # g for f: what all ranks have is added up, and its gradient is not.
    ("tensor_parallel.linear.ColumnParallelLinear.forward", "copy_to_parallel(x", "reduce_from_parallel(x"),
    by_claim("craft.engine", "parallel layers: bytes"),
    # A view, which keeps the whole matrix.
    ("tensor_parallel.linear.shard", "part.clone(memory_format=torch.contiguous_format)", "part"),
)
