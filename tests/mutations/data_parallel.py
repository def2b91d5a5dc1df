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
ACCUMULATED = "tests/data_parallel/test_accumulation.py"
PACKED = "tests/data_parallel/test_bucketed.py::test_packing_is_what_costs_predicts"
DURING = "full form: time of a step that sends during"
REDUCED, NO_DEMO = "tests/data_parallel/test_reduce_dtype.py", "the demos add up gradients in the parameters' dtype"

MUTATIONS = [
    # Practice.
    Mutation(
        f"{NAIVE}.NaiveDataParallel.synchronize", "1 / rank_and_size(self.group)[1]", "1", NAIVE, "gradients' distance"
    ),
    Mutation(
        f"{BUCKETED}.start_from_rank_0",
        "broadcast(parameter.data, 0, group).wait()",
        "pass",
        BUCKETED,
        "gradients' distance",
    ),
    Mutation(f"{BUCKETED}.pack", ">= bucket_megabytes", "> bucket_megabytes", BUCKETED, "all-reduces"),
    Mutation(
        f"{BUCKETED}.pack",
        "reversed(list(module.parameters()))",
        "list(module.parameters())",
        OVERLAPPED,
        "small form: all-reduces that have started",
    ),
    Mutation(f"{BUCKETED}.hand_back", "flat.split(", "flat.flip(0).split(", BUCKETED, "gradients' distance"),
    Mutation(f"{ACCUMULATION}.accumulate", " / len(micro_batches)", "", ACCUMULATION, "gradients' distance"),
    Mutation(
        f"{ACCUMULATION}.accumulate",
        " / rank_and_size(model.group)[1]",
        "",
        test=f"{ACCUMULATED}::test_small_form_equals_one_batch",
        why="the loss that it returns is not claimed",
    ),
    Mutation(
        f"{NAIVE}.NaiveDataParallel.__init__",
        "broadcast(parameter.data, 0, group)",
        "broadcast(parameter.data, rank_and_size(group)[1] - 1, group)",
        NAIVE,
        "gradients' distance",
    ),
    Mutation(
        f"{FULL}.bucketed.pack",
        ">= bucket_megabytes",
        "> bucket_megabytes",
        test=PACKED,
        why="the claims on buckets are about the small form",
    ),
    Mutation(f"{FULL}.bucketed.BucketedDataParallel._start", "1 / self.ranks", "1", OVERLAPPED, "weights that differ"),
    Mutation(
        f"{FULL}.accumulation.accumulate",
        "model.ranks / total",
        "1 / total",
        test=f"{ACCUMULATED}::test_micro_batches_of_different_sizes_equal_one_batch",
        why="the claims are about the small form",
    ),
    Mutation(
        f"{FULL}.accumulation._sum_over_ranks",
        "model.comm.all_reduce(number).wait()",
        "pass",
        test=f"{ACCUMULATED}::test_micro_batches_of_different_sizes_equal_one_batch",
        why="the claims are about the small form",
    ),
    Mutation(
        f"{FULL}.accumulation.accumulate",
        "loss.detach() / total",
        "loss.detach() / count(micro_batch)",
        test=f"{ACCUMULATED}::test_micro_batches_of_different_sizes_equal_one_batch",
        why="the claims are about the small form",
    ),
    Mutation(
        f"{FULL}.accumulation.accumulate",
        "if not total",
        "if not micro_batches",
        test=f"{ACCUMULATED}::test_a_batch_without_targets_is_refused",
        why="the claims are about the small form",
    ),
    # Averages of parameters in some steps only.
    Mutation(f"{LOCAL}.average", "1 / rank_and_size(group)[1]", "1", LOCAL, "H = 1: largest difference"),
    Mutation(f"{LOCAL}.LocalSGD.after_step", "self.steps % self.every == 0", "True", LOCAL, "parameters after"),
    Mutation(
        f"{LOCAL}.LocalSGD.after_step",
        "self.steps % self.every == 0",
        "self.steps % self.every == 1 % self.every",
        LOCAL,
        "payload of all-reduces",
    ),
    Mutation(
        f"{NODES}.HierarchicalSGD.synchronize",
        "self.within",
        "self.across",
        NODES,
        WITHIN,
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
    Mutation(f"{DILOCO}.DiLoCo.after_step", "self.outer.zero_grad()", "pass", DILOCO, "bytes held besides"),
    Mutation(f"{PERIODIC}.settles_at", "** every", "", LOCAL, "parameters after"),
    Mutation(f"{PERIODIC}.rounds", "steps // every", "-(-steps // every)", LOCAL, "payload of all-reduces"),
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
    Mutation(
        f"{BUCKETED}.start_from_rank_0", "(parameter.data, 0", "(parameter.data, 1", OVERLAPPED, "gradients' dist"
    ),
    Mutation(f"{BUCKETED}.hand_back", "view_as(parameter)", "view_as(parameter) * 2", BUCKETED, "weights that differ"),
    Mutation(f"{THEORY}.gradient_bytes", "p.elements * p.item_size", "4 * p.elements", NAIVE, "small form: payload"),
    Mutation(f"{THEORY}.gradient_bytes", "p.elements *", "(p.elements + 1) *", BUCKETED, "small form: payload"),
    Mutation(
        f"{THEORY}.buckets",
        "flags = last - first + 1",
        "flags = 1",
        test=PACKED,
        why="in the small form no flags travel",
    ),
    Mutation(
        f"{THEORY}.buckets", "reversed(range(len(parameters)))", "range(len(parameters))", BUCKETED, "all-reduces"
    ),
    Mutation(f"{THEORY}.buckets", ">= limit)", "> limit)", BUCKETED, "all-reduces"),
    Mutation(
        f"{THEORY}.payload",
        "(p.elements + 1) * p.item_size",
        "p.elements * p.item_size + 4",
        test=PACKED,
        why="in the small form no flags travel",
    ),
    Mutation(
        f"{THEORY}.step_time",
        "communication[k:]",
        "communication[k + 1 :]",
        OVERLAPPED,
        DURING,
    ),
    Mutation(
        f"{THEORY}.step_time",
        "for k in range(len(backward))",
        "for k in (0, len(backward) - 1)",
        OVERLAPPED,
        DURING,
    ),
    Mutation(f"{THEORY}.step_time", "forward + max(", "max(", OVERLAPPED, DURING),
]
