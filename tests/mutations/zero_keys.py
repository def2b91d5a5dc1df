"""Mistakes by which key claims of the chapter zero turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("zero.stage1", "small form: bytes of reduce-scatters"),
    # Stage 1 as if it sent gradients in each micro-batch.
    ("costs.zero.volume", "1: 2, 2: micro_batches + 1", "1: micro_batches + 1, 2: micro_batches + 1"),
    by_claim("zero.stage1", "small form: bytes of optimizer"),
    # The optimizer has a copy, whose gradient never comes.
    ("zero.stage1.Zero1.__init__", "optimizer_class([self.shard]", "optimizer_class([self.shard.clone()]"),
    by_claim("zero.stage1", "small form: elements"),
    # A sum for the mean.
    ("zero.full.stage1.Zero1._average", "flat.mul_(1 / self.ranks)", "pass"),
    by_claim("zero.stage3", "small form: bytes of reduce-scatters"),
    # Parameters are gathered for backward once per step.
    ("costs.zero.volume", "3: 3 * micro_batches", "3: 2 * micro_batches + 1"),
    by_claim("zero.stage3", "small form: elements"),
    # The last micro-batch's gradient replaces those before it.
    ("zero.stage3.Unit.after_backward", "mean if self.shard.grad is None else self.shard.grad.add_(mean)", "mean"),
    # A sum for the mean.
    ("zero.full.stage2.Zero2._arrive", "1 / self.batch_ranks", "1"),
    by_claim("zero.hybrid", "small form: bytes of reduce-scatters"),
    # Parameters are not gathered again for backward.
    ("costs.hybrid_sharding.volume", "3 * micro_batches", "2 * micro_batches"),
    by_claim("zero.hybrid", "small form: bytes of parameters"),
    # Parameters are never freed.
    ("zero.stage3.Unit.reshard", "self.flat.untyped_storage().resize_(0)", "pass"),
    by_claim("zero.hybrid", "bytes that leave a node in a step of A = 3 micro-batches, hybrid"),
    # Whole gradients leave the node, not this rank's shards.
    ("costs.hybrid_sharding.step_traffic", "(shard_elements(line.elements, local),", "(line.elements,"),
    by_claim("zero.partitioned_checkpoints", "bytes copied to the host"),
    # Nothing goes to the host.
    ("zero.partitioned_checkpoints.Partitioned.forward", '.to("cpu", copy=True) if host else part.clone()', ".clone()"),
    by_claim("zero.defragmentation", "largest gap after forward over all that is free, without"),
    # The output is made when the temporaries are gone, and takes their place.
    (
        "zero.defragmentation.forward",
        "output = memory.allocate(checkpoint)\n        memory.free(inside)",
        "memory.free(inside)\n        output = memory.allocate(checkpoint)",
    ),
    by_claim("zero.offload", "small form: bytes of reduce-scatters"),
    # Gradients are sent once per step, as in stage 1.
    ("costs.zero.volume", "2: micro_batches + 1", "2: 2"),
    by_claim("zero.offload", "small form: bytes on the device"),
    # A gradient that has been sent keeps its memory.
    ("zero.stage2.Zero2.reduce", "parameter.grad = None", "parameter.grad.zero_()"),
    by_claim("zero.offload", "small form: bytes on the host"),
    # Views of the parameters for the host's copies.
    ("zero.offload.ZeroOffload.__init__", '[shard.to("cpu", copy=True) for shard in self.shards]', "list(self.shards)"),
    by_claim("zero.offload", "small form: elements"),
    # New parameters stay on the host.
    ("zero.offload.ZeroOffload.step", "self.shard_of(flat).copy_(shard)", "pass"),
    by_claim("zero.offload", "bytes copied to the host"),
    # Gradients stay on the device.
    ("zero.offload.ZeroOffload.keep", 'mean.to("cpu", copy=True)', "mean"),
)
