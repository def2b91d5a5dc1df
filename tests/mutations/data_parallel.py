"""Mistakes in the chapter of data parallelism."""

from tests.mutations import Mutation

HOME = "minitrain.data_parallel"
NAIVE, BUCKETED, OVERLAPPED, ACCUMULATION = (
    f"{HOME}.{name}" for name in ("naive", "bucketed", "overlapped", "accumulation")
)
FULL = f"{HOME}.full"
THEORY = "minitrain.costs.data_parallel"

MUTATIONS = [
    # Practice.
    Mutation(f"{NAIVE}.NaiveDataParallel.synchronize", "1 / self.ranks", "1", NAIVE, "gradients' distance"),
    Mutation(f"{BUCKETED}.start_from_rank_0", "parameter.data.zero_()", "pass", BUCKETED, "gradients' distance"),
    Mutation(f"{BUCKETED}.pack", ">= bucket_megabytes", "> bucket_megabytes", BUCKETED, "most buckets"),
    Mutation(
        f"{BUCKETED}.pack",
        "reversed(list(module.parameters()))",
        "list(module.parameters())",
        OVERLAPPED,
        "all-reduces started before the last gradient",
    ),
    Mutation(f"{BUCKETED}.hand_back", "flat.split(", "flat.flip(0).split(", BUCKETED, "gradients' distance"),
    Mutation(f"{ACCUMULATION}.accumulate", " / len(micro_batches)", "", ACCUMULATION, "gradients' distance"),
    Mutation(f"{ACCUMULATION}.accumulate", " / place(model.group)[1]", "", ACCUMULATION, "mean loss"),
    Mutation(f"{FULL}.naive.NaiveDataParallel._used_anywhere", "int32", "int64", NAIVE, "payload of a step"),
    Mutation(f"{FULL}.bucketed.pack", ">= bucket_megabytes", "> bucket_megabytes", BUCKETED, "most buckets"),
    Mutation(f"{FULL}.bucketed.BucketedDataParallel._start", "1 / self.ranks", "1", OVERLAPPED, "weights that differ"),
    Mutation(
        f"{FULL}.accumulation.accumulate", "model.ranks / total", "1 / total", ACCUMULATION, "gradients' distance"
    ),
    Mutation(
        f"{FULL}.accumulation.scaled_learning_rate",
        "base * batch / base_batch",
        "base * (batch / base_batch) ** 0.5",
        ACCUMULATION,
        "part of the way of 4 steps",
    ),
    Mutation(f"{FULL}.accumulation.warmed_up", "step / steps", "(step + 1) / steps", ACCUMULATION, "learning rates of"),
    Mutation(
        f"{FULL}.accumulation.accumulation_momentum",
        "1 - (1 - momentum) ** (1 / micro_batches)",
        "momentum / micro_batches",
        ACCUMULATION,
        "part of the old running mean kept by a step of A micro-batches, adjusted",
    ),
    # Theory.
    Mutation(f"{THEORY}.naive_all_reduces", "len(parameters) + 1", "len(parameters)", NAIVE, "all-reduces in a step"),
    Mutation(f"{THEORY}.naive_payload", "4 * len(parameters)", "len(parameters)", NAIVE, "payload of a step"),
    Mutation(f"{THEORY}.gradient_bytes", "p.elements * p.item_size", "4 * p.elements", NAIVE, "small form: payload"),
    Mutation(f"{THEORY}.naive_ring_traffic", "Sizes(len(parameters), 4)", "Sizes(1, 4)", NAIVE, "bytes sent by this"),
    Mutation(f"{THEORY}.buckets", "flags = last - first + 1", "flags = 1", BUCKETED, "payload of a step"),
    Mutation(
        f"{THEORY}.buckets", "reversed(range(len(parameters)))", "range(len(parameters))", BUCKETED, "all-reduces"
    ),
    Mutation(f"{THEORY}.most_buckets", "-(-size // limit)", "size // limit", BUCKETED, "most buckets"),
    Mutation(
        f"{THEORY}.payload", "(p.elements + 1) * p.item_size", "p.elements * p.item_size + 4", BUCKETED, "payload"
    ),
    Mutation(
        f"{THEORY}.step_time", "communication[k:]", "communication[k + 1 :]", OVERLAPPED, "time of a step, buckets"
    ),
    Mutation(
        f"{THEORY}.step_time",
        "for k in range(len(backward))",
        "for k in (0, len(backward) - 1)",
        OVERLAPPED,
        "time of a step, a large bucket in the middle",
    ),
    Mutation(f"{THEORY}.exposed", " - sum(backward)", "", OVERLAPPED, "time of a step in which nothing"),
]
