"""Mistakes in the chapter of data parallelism."""

from tests.mutations import Mutation

HOME = "minitrain.data_parallel"
NAIVE, BUCKETED, OVERLAPPED, ACCUMULATION, LOCAL, NODES, DILOCO = (
    f"{HOME}.{name}"
    for name in ("naive", "bucketed", "overlapped", "accumulation", "local_sgd", "hierarchical_sgd", "diloco")
)
FULL = f"{HOME}.full"
THEORY, PERIODIC = "minitrain.costs.data_parallel", "minitrain.costs.local_sgd"
WITHIN, ACROSS = (f"bytes in 24 steps, H = 4: all-reduces {where}" for where in ("within a node", "across nodes"))
REDUCED, NO_DEMO = "tests/data_parallel/test_reduce_dtype.py", "the demos add up gradients in the parameters' dtype"

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
    Mutation(f"{ACCUMULATION}.accumulate", " / rank_and_size(model.group)[1]", "", ACCUMULATION, "mean loss"),
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
        ("part of the way of 4 steps", "drift of 2 steps"),
    ),
    Mutation(f"{FULL}.accumulation.warmed_up", "step / steps", "(step + 1) / steps", ACCUMULATION, "learning rates of"),
    Mutation(
        f"{FULL}.accumulation.accumulation_momentum",
        "1 - (1 - momentum) ** (1 / micro_batches)",
        "momentum / micro_batches",
        ACCUMULATION,
        "part of the old running mean kept by a step of A micro-batches, adjusted",
    ),
    # Averages of parameters in some steps only.
    Mutation(f"{LOCAL}.average", "1 / rank_and_size(group)[1]", "1", LOCAL, "H = 1: largest difference"),
    Mutation(f"{LOCAL}.LocalSGD.after_step", "self.steps % self.every == 0", "True", LOCAL, "where averages settle"),
    Mutation(
        f"{LOCAL}.LocalSGD.after_step",
        "self.steps % self.every == 0",
        "self.steps % self.every == 1 % self.every",
        LOCAL,
        "elements that differ between ranks",
    ),
    Mutation(
        f"{NODES}.HierarchicalSGD.synchronize",
        "self.within",
        "self.across",
        NODES,
        "elements that differ between ranks",
    ),
    Mutation(
        f"{NODES}.HierarchicalSGD.after_step", "average([mine], self.across)", "pass", NODES, "where nodes settle"
    ),
    Mutation(
        f"{NODES}.HierarchicalSGD.after_step",
        ".chunk(ranks)[rank]",
        ".chunk(ranks)[0]",
        NODES,
        "largest difference from data",
    ),
    Mutation(f"{NODES}.HierarchicalSGD.after_step", "chunk(ranks)[rank]", "chunk(1)[0]", NODES, ACROSS),
    Mutation(f"{DILOCO}.DiLoCo.after_step", "shared - mine", "mine - shared", DILOCO, "H = 1, inner SGD"),
    Mutation(f"{DILOCO}.nesterov", "nesterov=True", "nesterov=False", DILOCO, "12 rounds"),
    Mutation(f"{DILOCO}.DiLoCo.after_step", "mine.copy_(shared)", "pass", DILOCO, "outer SGD of rate 1"),
    Mutation(f"{PERIODIC}.settles_at", "** every", "", LOCAL, "where averages settle"),
    Mutation(f"{PERIODIC}.rounds", "steps // every", "-(-steps // every)", LOCAL, "bytes into all-reduces"),
    Mutation(f"{PERIODIC}.bytes_across", "-(-elements // local)", "elements // local", NODES, ACROSS),
    Mutation(f"{PERIODIC}.bytes_within", "steps * size", "size", NODES, WITHIN),
    Mutation(f"{PERIODIC}.outer_bytes", "2 * size", "size", DILOCO, "bytes held besides"),
    # The dtype in which gradients are added up.
    Mutation(
        f"{FULL}.replica.reduced_in", "return reduce_dtype if", "return parameter.dtype if", test=REDUCED, why=NO_DEMO
    ),
    Mutation(f"{FULL}.replica.Replica.__init__", "parameter.grad_dtype = wide", "pass", test=REDUCED, why=NO_DEMO),
    Mutation(
        f"{FULL}.replica.Replica.__init__",
        "torch.promote_types(parameter.dtype, reduced_in(parameter, reduce_dtype))",
        "reduced_in(parameter, reduce_dtype)",
        test=REDUCED,
        why=NO_DEMO,
    ),
    Mutation(
        f"{FULL}.naive.NaiveDataParallel.synchronize",
        "mean.to(reduced_in(parameter, self.reduce_dtype))",
        "mean",
        test=REDUCED,
        why=NO_DEMO,
    ),
    Mutation(
        f"{FULL}.replica.agree_on_states",
        '"reduce_dtype": str(reduce_dtype)',
        '"reduce_dtype": ""',
        test=REDUCED,
        why=NO_DEMO,
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
        f"{THEORY}.step_time",
        "communication[k:]",
        "communication[k + 1 :]",
        OVERLAPPED,
        "time of a step, buckets of two layers, during",
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
