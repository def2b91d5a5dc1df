"""Mistakes in the chapter of data parallelism."""

SMALL_FORM = "the claims are about the small form"

FOUND_BY = {
    ("data_parallel.naive", "gradients' distance"): [
        ("data_parallel.naive.NaiveDataParallel.synchronize", "1 / rank_and_size(self.group)[1]", "1"),
        ("data_parallel.naive.NaiveDataParallel.__init__", "0, group)", "rank_and_size(group)[1] - 1, group)"),
    ],
    ("data_parallel.bucketed", "gradients' distance"): [
        ("data_parallel.bucketed.start_from_rank_0", "broadcast(parameter.data, 0, group).wait()", "pass"),
        ("data_parallel.bucketed.hand_back", "flat.split(", "flat.flip(0).split("),
    ],
    ("data_parallel.bucketed", "all-reduces"): [
        ("data_parallel.bucketed.pack", ">= bucket_megabytes", "> bucket_megabytes"),
        ("costs.data_parallel.buckets", "reversed(range(len(parameters)))", "range(len(parameters))"),
        ("costs.data_parallel.buckets", ">= limit)", "> limit)"),
    ],
    ("data_parallel.overlapped", "small form: all-reduces that have started"): [
        ("data_parallel.bucketed.pack", "reversed(list(module.parameters()))", "list(module.parameters())"),
    ],
    ("data_parallel.accumulation", "gradients' distance"): [
        ("data_parallel.accumulation.accumulate", " / len(micro_batches)", ""),
    ],
    (
        "tests/data_parallel/test_accumulation.py::test_small_form_equals_one_batch",
        "the loss that it returns is not claimed",
    ): [
        ("data_parallel.accumulation.accumulate", " / rank_and_size(model.group)[1]", ""),
    ],
    (
        "tests/data_parallel/test_bucketed.py::test_packing_is_what_costs_predicts",
        "the claims on buckets are about the small form",
    ): [
        ("data_parallel.full.bucketed.pack", ">= bucket_megabytes", "> bucket_megabytes"),
    ],
    ("data_parallel.overlapped", "weights that differ"): [
        ("data_parallel.full.bucketed.BucketedDataParallel._start", "1 / self.ranks", "1"),
    ],
    ("tests/data_parallel/test_accumulation.py::test_micro_batches_of_different_sizes_equal_one_batch", SMALL_FORM): [
        ("data_parallel.full.accumulation.accumulate", "model.ranks / total", "1 / total"),
        ("data_parallel.full.accumulation.accumulate", "loss.detach() / total", "loss.detach() / count(micro_batch)"),
    ],
    ("tests/data_parallel/test_accumulation.py::test_linear_scaling", "the lesson steps with no rate"): [
        ("data_parallel.full.accumulation.scaled_learning_rate", "batch / base_batch", "(batch / base_batch) ** 0.5"),
    ],
    ("tests/data_parallel/test_accumulation.py::test_a_batch_without_targets_is_refused", SMALL_FORM): [
        ("data_parallel.full.accumulation.accumulate", "if not total", "if not micro_batches"),
    ],
    ("data_parallel.local_sgd", "H = 1: largest difference"): [
        # Averages of parameters in some steps only.
        ("data_parallel.local_sgd.average", "1 / rank_and_size(group)[1]", "1"),
    ],
    ("data_parallel.local_sgd", "parameters after"): [
        ("data_parallel.local_sgd.LocalSGD.after_step", "self.steps % self.every == 0", "True"),
        ("costs.local_sgd.settles_at", "** every", ""),
    ],
    ("data_parallel.local_sgd", "payload of all-reduces"): [
        ("data_parallel.local_sgd.LocalSGD.after_step", "% self.every == 0", "% self.every == 1 % self.every"),
        ("costs.local_sgd.rounds", "steps // every", "-(-steps // every)"),
    ],
    ("data_parallel.hierarchical_sgd", "bytes in 24 steps, H = 4: all-reduces within a node"): [
        ("data_parallel.hierarchical_sgd.HierarchicalSGD.synchronize", "self.within", "self.across"),
        ("costs.local_sgd.bytes_within", "steps * size", "size"),
    ],
    ("data_parallel.hierarchical_sgd", "where nodes settle"): [
        ("data_parallel.hierarchical_sgd.HierarchicalSGD.after_step", "average([mine], self.across)", "pass"),
    ],
    ("data_parallel.hierarchical_sgd", "largest difference from data"): [
        ("data_parallel.hierarchical_sgd.HierarchicalSGD.after_step", ".chunk(ranks)[rank]", ".chunk(ranks)[0]"),
    ],
    ("data_parallel.hierarchical_sgd", "bytes in 24 steps, H = 4: all-reduces across nodes"): [
        ("data_parallel.hierarchical_sgd.HierarchicalSGD.after_step", "chunk(ranks)[rank]", "chunk(1)[0]"),
        ("costs.local_sgd.bytes_across", "-(-elements // local)", "elements // local"),
    ],
    ("data_parallel.diloco", "H = 1, inner SGD"): [
        ("data_parallel.diloco.DiLoCo.after_step", "shared - mine", "mine - shared"),
    ],
    ("data_parallel.diloco", "12 rounds"): [
        ("data_parallel.diloco.nesterov", "nesterov=True", "nesterov=False"),
    ],
    ("data_parallel.diloco", "outer SGD of rate 1"): [
        ("data_parallel.diloco.DiLoCo.after_step", "mine.copy_(shared)", "pass"),
    ],
    ("data_parallel.diloco", "bytes held besides"): [
        ("data_parallel.diloco.DiLoCo.after_step", "self.outer.zero_grad()", "pass"),
        ("costs.local_sgd.outer_bytes", "2 * size", "size"),
    ],
    ("tests/data_parallel/test_reduce_dtype.py", "the demos add up gradients in the parameters' dtype"): [
        # The dtype in which gradients are added up.
        ("data_parallel.full.replica.reduced_in", "return reduce_dtype if", "return parameter.dtype if"),
        ("data_parallel.full.replica.Replica.__init__", "parameter.grad_dtype = wide", "pass"),
        (
            "data_parallel.full.replica.Replica.__init__",
            "torch.promote_types(parameter.dtype, reduced_in(parameter, reduce_dtype))",
            "reduced_in(parameter, reduce_dtype)",
        ),
        ("data_parallel.full.naive.NaiveDataParallel.synchronize", ".to(reduced_in(parameter, self.reduce_dtype))", ""),
        ("data_parallel.full.replica.agree_on_states", '"reduce_dtype": str(reduce_dtype)', '"reduce_dtype": ""'),
    ],
    ("data_parallel.overlapped", "gradients' dist"): [
        ("data_parallel.bucketed.start_from_rank_0", "(parameter.data, 0", "(parameter.data, 1"),
    ],
    ("data_parallel.bucketed", "weights that differ"): [
        ("data_parallel.bucketed.hand_back", "view_as(parameter)", "view_as(parameter) * 2"),
    ],
    ("data_parallel.naive", "small form: payload"): [
        ("costs.data_parallel.gradient_bytes", "p.elements * p.item_size", "4 * p.elements"),
    ],
    ("data_parallel.bucketed", "small form: payload"): [
        ("costs.data_parallel.gradient_bytes", "p.elements *", "(p.elements + 1) *"),
    ],
    (
        "tests/data_parallel/test_bucketed.py::test_packing_is_what_costs_predicts",
        "in the small form no flags travel",
    ): [
        ("costs.data_parallel.buckets", "flags = last - first + 1", "flags = 1"),
        ("costs.data_parallel.payload", "(p.elements + 1) * p.item_size", "p.elements * p.item_size + 4"),
    ],
    ("data_parallel.overlapped", "full form: time of a step that sends during"): [
        ("costs.data_parallel.step_time", "communication[k:]", "communication[k + 1 :]"),
        ("costs.data_parallel.step_time", "for k in range(len(backward))", "for k in (0, len(backward) - 1)"),
        ("costs.data_parallel.step_time", "forward + max(", "max("),
    ],
}
