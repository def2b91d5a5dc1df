"""Mistakes by which key claims of the chapter data parallel turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("data_parallel.naive", "small form: all-reduces", "weights that differ"),
    # The first parameter is forgotten.
    (
        "data_parallel.naive.NaiveDataParallel.synchronize",
        "in self.module.parameters()",
        "in list(self.module.parameters())[1:]",
    ),
    by_claim("data_parallel.bucketed", "small form: payload", "weights that differ"),
    # The first parameter is in no bucket.
    ("data_parallel.bucketed.pack", "reversed(list(module.parameters()))", "reversed(list(module.parameters())[1:])"),
    by_claim("data_parallel.overlapped", "small form: all-reduces in a step"),
    # Kilobytes for megabytes.
    ("data_parallel.bucketed.pack", "* 2**20", "* 2**10"),
    by_claim("data_parallel.overlapped", "gradients' distance from the mean"),
    # A sum for the mean.
    ("data_parallel.bucketed.start", "flat *= 1 / rank_and_size(group)[1]", "pass"),
    by_claim("data_parallel.overlapped", "full form: time of a step"),
    # As if buckets left during backward.
    ("costs.data_parallel.step_time", "+ sum(backward) + sum(communication", "+ max(sum(backward), sum(communication)"),
    by_claim("data_parallel.accumulation", "small form: all-reduces"),
    # The loss of this rank for that of all.
    ("data_parallel.accumulation.accumulate", "all_reduce(mean, model.group).wait()", "pass"),
    by_claim("data_parallel.accumulation", "small form: most bytes"),
    # All micro-batches of samples at once, each time.
    (
        "data_parallel.accumulation.accumulate",
        "loss_of(model, micro_batch) /",
        "loss_of(model, micro_batch if len(micro_batch) != 2 else list(map(torch.cat, zip(*micro_batches)))) /",
    ),
    by_claim("data_parallel.accumulation", "gradients' distance from one device"),
    # The sum of the ranks' gradients.
    ("data_parallel.bucketed.start", "flat *= 1 / rank_and_size(group)[1]", "pass"),
    by_claim("data_parallel.local_sgd", "parameters after"),
    # The mean of two ranks, however many there are.
    ("data_parallel.local_sgd.average", "flat *= 1 / rank_and_size(group)[1]", "flat *= 0.5"),
    by_claim("data_parallel.diloco", "bytes of all that is sent"),
    # A round that ends a step early.
    ("data_parallel.diloco.DiLoCo.after_step", "if self.steps % self.every", "if (self.steps + 1) % self.every"),
)
