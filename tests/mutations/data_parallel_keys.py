"""Mistakes by which key claims of the chapter data parallel turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.data_parallel"
THEORY = "minitrain.costs"
LESSONS = "minitrain.lessons.data_parallel"

MUTATIONS = [
    # The first parameter is forgotten.
    Mutation(
        f"{HOME}.naive.NaiveDataParallel.synchronize",
        "in self.module.parameters()",
        "in list(self.module.parameters())[1:]",
        f"{HOME}.naive",
        ("small form: all-reduces", "weights that differ"),
    ),
    # The first parameter is in no bucket.
    Mutation(
        f"{HOME}.bucketed.pack",
        "reversed(list(module.parameters()))",
        "reversed(list(module.parameters())[1:])",
        f"{HOME}.bucketed",
        ("small form: payload", "weights that differ"),
    ),
    # Kilobytes for megabytes.
    Mutation(f"{HOME}.bucketed.pack", "* 2**20", "* 2**10", f"{HOME}.overlapped", "small form: all-reduces in a step"),
    # A sum for the mean.
    Mutation(
        f"{HOME}.bucketed.start",
        "flat *= 1 / rank_and_size(group)[1]",
        "pass",
        f"{HOME}.overlapped",
        "gradients' distance from the mean",
    ),
    # As if buckets left during backward.
    Mutation(
        f"{THEORY}.data_parallel.step_time",
        "forward + sum(backward) + sum(communication)",
        "forward + max(sum(backward), sum(communication))",
        f"{HOME}.overlapped",
        "full form: time of a step that sends after",
    ),
    # The loss of this rank for that of all.
    Mutation(
        f"{HOME}.accumulation.accumulate",
        "all_reduce(mean, model.group).wait()",
        "pass",
        f"{HOME}.accumulation",
        "small form: all-reduces",
    ),
    # All micro-batches of samples at once, each time.
    Mutation(
        f"{HOME}.accumulation.accumulate",
        "loss_of(model, micro_batch) /",
        "loss_of(model, micro_batch if len(micro_batch) != 2 else list(map(torch.cat, zip(*micro_batches)))) /",
        f"{HOME}.accumulation",
        "small form: most bytes",
    ),
    # A mean over all tokens, where a mean of means is to be shown.
    Mutation(
        f"{LESSONS}.accumulation.mean_of_means",
        "model(part).mean()",
        "model(part).sum() / 4",
        f"{HOME}.accumulation",
        "weight of the heaviest token",
    ),
    # The sum of the ranks' gradients.
    Mutation(
        f"{HOME}.bucketed.start",
        "flat *= 1 / rank_and_size(group)[1]",
        "pass",
        f"{HOME}.accumulation",
        "gradients' distance from one device",
    ),
    # The mean of two ranks, however many there are.
    Mutation(
        f"{HOME}.local_sgd.average",
        "flat *= 1 / rank_and_size(group)[1]",
        "flat *= 0.5",
        f"{HOME}.local_sgd",
        "distance of these parameters from the optimum",
    ),
    # A round that ends a step early.
    Mutation(
        f"{HOME}.diloco.DiLoCo.after_step",
        "if self.steps % self.every",
        "if (self.steps + 1) % self.every",
        f"{HOME}.diloco",
        "bytes of all that is sent",
    ),
]
