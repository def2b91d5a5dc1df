"""Mistakes by which key claims of the chapter pipeline parallel turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.pipeline_parallel"
THEORY = "minitrain.costs"
LESSONS = "minitrain.lessons.pipeline_parallel"

MUTATIONS = [
    # The last micro-batch is left out.
    Mutation(
        f"{HOME}.gpipe.step",
        "for i in range(len(inputs)):",
        "for i in range(len(inputs) - 1):",
        f"{HOME}.gpipe",
        ("small form: bytes", "small form: micro-batches", "small form: bubble"),
    ),
    # The last micro-batch is left out.
    Mutation(
        f"{HOME}.one_f_one_b.step",
        "for i in range(warmup, len(inputs)):",
        "for i in range(warmup, len(inputs) - 1):",
        f"{HOME}.one_f_one_b",
        ("small form: bytes", "small form: bubble"),
    ),
    # As many on each rank as on the first.
    Mutation(
        f"{THEORY}.pipeline.one_f_one_b_in_flight",
        "min(microbatches, ranks - rank)",
        "min(microbatches, ranks)",
        f"{HOME}.one_f_one_b",
        "small form: micro-batches",
    ),
    # Over the time of the work, not over all time.
    Mutation(
        f"{THEORY}.pipeline.bubble_over_total",
        "chunks * microbatches + ranks - 1",
        "chunks * microbatches",
        f"{HOME}.executor",
        ("bubble of 1f1b, and of gpipe", "bubble of interleaved over"),
    ),
    # The last micro-batch is not held.
    Mutation(
        f"{THEORY}.pipeline.gpipe_in_flight",
        "return microbatches",
        "return microbatches - 1",
        f"{HOME}.gpipe",
        "small form: micro-batches",
    ),
    # Split where nothing is to be put off, and not where something is.
    Mutation(
        f"{HOME}.weight_gradients.SplitBackward._linear",
        "if not put_off or",
        "if put_off or",
        f"{HOME}.weight_gradients",
        "operations of F",
    ),
    # The last norm is forgotten.
    Mutation(
        f"{HOME}.splitting.layers_of",
        '"norm": model.norm, ',
        "",
        f"{HOME}.splitting",
        "outputs of the stages",
    ),
    # Over the time of the work, not over all time.
    Mutation(
        f"{THEORY}.pipeline.bubble_over_total",
        "chunks * microbatches + ranks - 1",
        "chunks * microbatches",
        f"{HOME}.without_flush",
        "bubble over the total",
    ),
    # Activations only, no gradients.
    Mutation(
        f"{THEORY}.pipeline.sent",
        "for end in (stage, stage + 1)",
        "for end in (stage,)",
        f"{HOME}.without_flush",
        "bytes sent by this rank",
    ),
    # Not in place: the graphs keep the old memory.
    Mutation(
        f"{HOME}.no_stashing.train",
        "w.data -= lr * gradient",
        "w.data = w.data - lr * gradient",
        f"{HOME}.no_stashing",
        "bytes of versions",
    ),
    # The mistake that is to be shown is not made.
    Mutation(
        f"{LESSONS}.no_stashing.mixed_gradient",
        "second.data -= delta",
        "pass",
        f"{HOME}.no_stashing",
        "the same: difference",
    ),
    # Activations only, no gradients.
    Mutation(
        f"{THEORY}.pipeline.sent",
        "for end in (stage, stage + 1)",
        "for end in (stage,)",
        f"{HOME}.pipedream",
        "bytes sent by this rank",
    ),
    # In place, so that micro-batches in flight see the new weights.
    Mutation(
        f"{HOME}.vertical_sync.train",
        "updated(versions[i], grads[: len(versions[i])], lr)",
        "{name: w.data.sub_(lr * g).requires_grad_() for (name, w), g in zip(versions[i].items(), grads)}",
        f"{HOME}.vertical_sync",
        "versions of the weights",
    ),
    # Activations only, no gradients.
    Mutation(
        f"{THEORY}.pipeline.sent",
        "for end in (stage, stage + 1)",
        "for end in (stage,)",
        f"{HOME}.vertical_sync",
        "bytes sent by this rank",
    ),
    # Activations only, no gradients.
    Mutation(
        f"{THEORY}.pipeline.sent",
        "for end in (stage, stage + 1)",
        "for end in (stage,)",
        f"{HOME}.two_buffered",
        "bytes sent by this rank",
    ),
]
