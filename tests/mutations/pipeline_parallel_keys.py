"""Mistakes by which key claims of the chapter pipeline parallel turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("pipeline_parallel.gpipe", "small form: bytes", "small form: micro-batches", "small form: bubble"),
    # The last micro-batch is left out.
    ("pipeline_parallel.gpipe.step", "for i in range(len(inputs)):", "for i in range(len(inputs) - 1):"),
    by_claim("pipeline_parallel.one_f_one_b", "small form: bytes", "small form: bubble"),
    # The last micro-batch is left out.
    ("pipeline_parallel.one_f_one_b.step", "i in range(warmup, len(inputs)):", "i in range(warmup, len(inputs) - 1):"),
    by_claim("pipeline_parallel.one_f_one_b", "small form: micro-batches"),
    # As many on each rank as on the first.
    ("costs.pipeline.one_f_one_b_in_flight", "min(microbatches, ranks - rank)", "min(microbatches, ranks)"),
    by_claim("pipeline_parallel.executor", "bubble of 1f1b, and of gpipe", "bubble of interleaved over"),
    # Over the time of the work, not over all time.
    ("costs.pipeline.bubble_over_total", "chunks * microbatches + ranks - 1", "chunks * microbatches"),
    by_claim("pipeline_parallel.gpipe", "small form: micro-batches"),
    # The last micro-batch is not held.
    ("costs.pipeline.gpipe_in_flight", "return microbatches", "return microbatches - 1"),
    by_claim("pipeline_parallel.weight_gradients", "operations of F"),
    # Split where nothing is to be put off, and not where something is.
    ("pipeline_parallel.weight_gradients.SplitBackward._linear", "if not put_off or", "if put_off or"),
    by_claim("pipeline_parallel.splitting", "outputs of the stages"),
    # The last norm is forgotten.
    ("pipeline_parallel.splitting.layers_of", '"norm": model.norm, ', ""),
    by_claim("pipeline_parallel.without_flush", "bubble over the total"),
    # Over the time of the work, not over all time.
    ("costs.pipeline.bubble_over_total", "chunks * microbatches + ranks - 1", "chunks * microbatches"),
    by_claim("pipeline_parallel.two_buffered", "bytes sent by this rank"),
    # Activations only, no gradients.
    ("costs.pipeline.sent", "for end in (stage, stage + 1)", "for end in (stage,)"),
    by_claim("pipeline_parallel.no_stashing", "bytes of versions"),
    # Not in place: the graphs keep the old memory.
    ("pipeline_parallel.no_stashing.train", "w.data -= lr * gradient", "w.data = w.data - lr * gradient"),
    by_claim("pipeline_parallel.no_stashing", "the same: difference"),
    # The mistake that is to be shown is not made.
    ("lessons.pipeline_parallel.no_stashing.mixed_gradient", "second.data -= delta", "pass"),
    by_claim("pipeline_parallel.pipedream", "bytes sent by this rank"),
    # Activations only, no gradients.
    ("costs.pipeline.sent", "for end in (stage, stage + 1)", "for end in (stage,)"),
    by_claim("pipeline_parallel.vertical_sync", "versions of the weights"),
    # In place, so that micro-batches in flight see the new weights.
    (
        "pipeline_parallel.vertical_sync.train",
        "updated(versions[i], grads[: len(versions[i])], lr)",
        "{name: w.data.sub_(lr * g).requires_grad_() for (name, w), g in zip(versions[i].items(), grads)}",
    ),
    by_claim("pipeline_parallel.vertical_sync", "bytes sent by this rank"),
    # Activations only, no gradients.
    ("costs.pipeline.sent", "for end in (stage, stage + 1)", "for end in (stage,)"),
    by_claim("pipeline_parallel.two_buffered", "bytes sent by this rank"),
    # Activations only, no gradients.
    ("costs.pipeline.sent", "for end in (stage, stage + 1)", "for end in (stage,)"),
)
