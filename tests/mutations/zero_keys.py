"""Mistakes by which key claims of the chapter zero turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.zero"
FULL = "minitrain.zero.full"
THEORY = "minitrain.costs"

MUTATIONS = [
    # Stage 1 as if it sent gradients in each micro-batch.
    Mutation(
        f"{THEORY}.zero.volume",
        "1: 2, 2: micro_batches + 1",
        "1: micro_batches + 1, 2: micro_batches + 1",
        f"{HOME}.stage1",
        "small form: bytes of reduce-scatters",
    ),
    # The optimizer has a copy, whose gradient never comes.
    Mutation(
        f"{HOME}.stage1.Zero1.__init__",
        "optimizer_class([self.shard]",
        "optimizer_class([self.shard.clone()]",
        f"{HOME}.stage1",
        "small form: bytes of optimizer",
    ),
    # A sum for the mean.
    Mutation(
        f"{FULL}.stage1.Zero1._average", "flat.mul_(1 / self.ranks)", "pass", f"{HOME}.stage1", "small form: elements"
    ),
    # Parameters are gathered for backward once per step.
    Mutation(
        f"{THEORY}.zero.volume",
        "3: 3 * micro_batches",
        "3: 2 * micro_batches + 1",
        f"{HOME}.stage3",
        "small form: bytes of reduce-scatters",
    ),
    # The last micro-batch's gradient replaces those before it.
    Mutation(
        f"{HOME}.stage3.Unit.after_backward",
        "mean if self.shard.grad is None else self.shard.grad.add_(mean)",
        "mean",
        f"{HOME}.stage3",
        "small form: elements",
    ),
    # A sum for the mean.
    Mutation(
        f"{FULL}.stage2.Zero2._arrive",
        "1 / self.batch_ranks",
        "1",
        f"{HOME}.stage3",
        "small form: elements",
    ),
    # Parameters are not gathered again for backward.
    Mutation(
        f"{THEORY}.hybrid_sharding.volume",
        "3 * micro_batches",
        "2 * micro_batches",
        f"{HOME}.hybrid",
        "small form: bytes of reduce-scatters",
    ),
    # Parameters are never freed.
    Mutation(
        f"{HOME}.stage3.Unit.reshard",
        "self.flat.untyped_storage().resize_(0)",
        "pass",
        f"{HOME}.hybrid",
        "small form: bytes of parameters",
    ),
    # Whole gradients leave the node, not this rank's shards.
    Mutation(
        f"{THEORY}.hybrid_sharding.step_traffic",
        "ring_all_reduce(shard_elements(line.elements, local),",
        "ring_all_reduce(line.elements,",
        f"{HOME}.hybrid",
        "bytes that leave a node in a step of A = 3 micro-batches, hybrid",
    ),
    # Nothing goes to the host.
    Mutation(
        f"{HOME}.partitioned_checkpoints.Partitioned.forward",
        'part.to("cpu", copy=True) if host else part.clone()',
        "part.clone()",
        f"{HOME}.partitioned_checkpoints",
        "bytes copied to the host",
    ),
    # The output is made when the temporaries are gone, and takes their place.
    Mutation(
        f"{HOME}.defragmentation.forward",
        "output = memory.allocate(checkpoint)\n        memory.free(inside)",
        "memory.free(inside)\n        output = memory.allocate(checkpoint)",
        f"{HOME}.defragmentation",
        "largest gap after forward over all that is free, without",
    ),
    # Gradients are sent once per step, as in stage 1.
    Mutation(
        f"{THEORY}.zero.volume",
        "2: micro_batches + 1",
        "2: 2",
        f"{HOME}.offload",
        "small form: bytes of reduce-scatters",
    ),
    # A gradient that has been sent keeps its memory.
    Mutation(
        f"{HOME}.stage2.Zero2.reduce",
        "parameter.grad = None",
        "parameter.grad.zero_()",
        f"{HOME}.offload",
        "small form: bytes on the device",
    ),
    # Views of the parameters for the host's copies.
    Mutation(
        f"{HOME}.offload.ZeroOffload.__init__",
        '[shard.to("cpu", copy=True) for shard in self.shards]',
        "list(self.shards)",
        f"{HOME}.offload",
        "small form: bytes on the host",
    ),
    # New parameters stay on the host.
    Mutation(
        f"{HOME}.offload.ZeroOffload.step",
        "self.shard_of(flat).copy_(shard)",
        "pass",
        f"{HOME}.offload",
        "small form: elements",
    ),
    # Gradients stay on the device.
    Mutation(
        f"{HOME}.offload.ZeroOffload.keep",
        'mean.to("cpu", copy=True)',
        "mean",
        f"{HOME}.offload",
        "bytes copied to the host",
    ),
]
