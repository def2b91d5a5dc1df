"""Mistakes in the chapters of ZeRO and of checkpointing."""

FOUND_BY = {
    ("zero.stage1", "small form: elements that differ", "small form: weights that differ"): [
        ("zero.stage1.Zero1.synchronize", "mul_(1 / self.ranks)", "mul_(1.0)"),
    ],
    ("zero.stage2", "small form: bytes of gradients"): [
        ("zero.stage2.Zero2.reduce", "parameter.grad = None", "pass"),
    ],
    ("zero.stage2", "small form: weights that differ"): [
        ("zero.stage2.Zero2.reduce", "parameter.grad.mul_(1 / self.ranks)", "parameter.grad"),
    ],
    ("zero.stage3", "small form: weights that differ"): [
        ("zero.stage3.Unit.after_backward", "mul_(1 / self.ranks)", "mul_(1.0)"),
    ],
    ("zero.stage3", "small form: most bytes of whole parameters", "small form: bytes of parameters, gradients"): [
        ("zero.stage3.Unit.reshard", "self.flat.untyped_storage().resize_(0)", "pass"),
    ],
    (
        "tests/zero/test_offload.py::test_pools_share_nothing_and_every_crossing_is_counted",
        "the lesson counts what crosses in the small form, which has one dtype",
    ): [
        ("zero.full.offload.ZeroOffload._copy_master_to_shard", ".to(line.shard.dtype)", ""),
    ],
    ("zero.offload", "bytes copied to the device"): [
        ("zero.offload.ZeroOffload.step", ".copy_(shard)", ".copy_(shard.double())"),
    ],
    ("tests/zero/test_sharded.py::test_trains_like_ddp", "no claim is about clipping, which small forms leave out"): [
        ("comm.clip_grad_norm._norm", "comm.all_reduce(square).wait()", "pass"),
    ],
    ("tests/zero/test_stage3.py::test_the_time_of_a_step_is_the_formulas", "the lesson's step prefetches"): [
        ("zero.full.unshard_hooks.UnshardHooks._unshard_and_wait", "is not None and self.prefetch", "is not None"),
    ],
    (
        "tests/zero/test_sharded.py::test_each_stage_holds_what_theory_says",
        "the lesson counts what the small form holds, which has no masters",
    ): [
        ("zero.full.sharded.Sharded._master_dtype", "torch.promote_types(dtype, torch.float32)", "self.compute_dtype"),
    ],
    ("zero.stage1", "full form: time of a step of 4 layers, messages under"): [
        ("zero.full.stage1.Zero1._arrive", "while self._next < len(self._turns) and", "while not self._turns and"),
        ("zero.full.sharded.Sharded._all_gather_parameters", "if not self._travels:", "if self._gathers:"),
    ],
    ("zero.stage2", "full form: most bytes of gradients"): [
        ("zero.full.stage2.Zero2._start", "if self.drain:", "if not self.drain:"),
        ("costs.zero.gradient_peak", "this + following for", "this + 2 * following for"),
        ("costs.zero.gradient_peak", "default=0) + largest", "default=0)"),
    ],
    ("zero.stage2", "small form: elements that differ"): [
        ("zero.full.stage2.Collector.add", "self.shard.add_(part)", "self.shard.copy_(part)"),
    ],
    (
        "tests/zero/test_sharded.py::test_unused_parameters_count_as_zeros",
        "the lesson's model has no unused parameters, which small forms refuse",
    ): [
        ("zero.full.stage2.Collector.take", "self._views[name].zero_()", "pass"),
    ],
    ("tests/costs/test_zero.py::test_the_papers_figure_1", "demos count the bytes of whole buffers, by `held`"): [
        ("costs.zero.state_bytes", "stage >= first", "stage > first"),
    ],
    ("zero.stage2", "small form: bytes of reduce-scatters"): [
        ("costs.zero.volume", "micro_batches + 1", "micro_batches"),
    ],
    ("tests/zero/test_sharded.py::test_each_stage_holds_what_theory_says", "stage 1's lesson counts its states only"): [
        ("costs.zero.held", "shard if stage >= 2", "shard if stage >= 1"),
    ],
    ("zero.offload", "small form: bytes on the device"): [
        ("costs.zero.held", "shard if stage == 3 else whole", "shard"),
    ],
    ("zero.stage3", "small form: bytes of parameters, gra"): [
        ("costs.zero.shard_elements", "-(-elements // ranks)", "elements // ranks"),
    ],
    (
        "tests/costs/test_zero.py::test_a_step_sends_its_volume",
        "the lesson counts what collectives carry, not what a ring sends",
    ): [
        ("costs.zero.step_traffic", "2 * micro_batches if stage == 3", "micro_batches if stage == 3"),
    ],
    ("zero.stage3", "full form: time of a step of 4 layers, the next"): [
        ("lessons.zero.step_time.step_time", "(layers - 2) * max", "(layers // 2) * max"),
        ("lessons.zero.step_time.step_time", "max(forward, carry)", "carry"),
    ],
    ("zero.hybrid", "small form: bytes of all-reduces across nodes"): [
        ("zero.hybrid.HybridZero3.synchronize", "all_reduce(gradient, self.replicas).wait()", "pass"),
    ],
    ("zero.hybrid", "small form: elements that differ from the full form's"): [
        ("zero.hybrid.HybridZero3.__init__", "unit.ranks *= nodes", "pass"),
    ],
    (
        "tests/zero/test_sharded.py::test_trains_like_ddp",
        "the lesson compares the small form's gradients with one device's",
    ): [
        ("zero.full.hybrid.HybridZero3._prepare", "self.ranks * self.replicas.ranks", "self.ranks"),
    ],
    ("tests/zero/test_sharded.py::test_trains_like_ddp", "a small form's ranks start with equal weights"): [
        ("zero.full.hybrid.HybridZero3._broadcast_states", "super()._broadcast_states(self.replicas)", "pass"),
    ],
    ("zero.hybrid", "bytes that leave a node in a step of A = 3 micro-batches, hybrid"): [
        ("costs.hybrid_sharding.out_of_a_node", "node * local, (node + 1) * local)", "node * local, node * local + 1)"),
    ],
    ("zero.hybrid", "bytes that leave a node in a step of A = 3 micro-batches, stage 3"): [
        ("costs.hybrid_sharding.out_of_a_node_without", "(ranks - 1) // ranks", "(local - 1) // local"),
    ],
    ("zero.partitioned_checkpoints", "bytes of checkpoints on"): [
        ("zero.partitioned_checkpoints.Partitioned.forward", "part.clone()", "part"),
        ("costs.partitioned_checkpoints.part", "-(-elements // ranks)", "elements // ranks"),
    ],
    ("zero.partitioned_checkpoints", "bytes of check"): [
        ("zero.partitioned_checkpoints.Partitioned.forward", 'part.to("cpu", copy=True)', "part.clone()"),
    ],
    ("zero.partitioned_checkpoints", "bytes sent by this rank to gather checkpoints"): [
        ("zero.partitioned_checkpoints.Partitioned.backward", "all_gather(mine, ctx.group, into=flat).wait()", "pass"),
    ],
    ("zero.partitioned_checkpoints", "elements of gradients that differ"): [
        ("zero.partitioned_checkpoints.Partitioned.forward", "chunk(ranks)[rank]", "chunk(ranks)[0]"),
    ],
    ("zero.partitioned_checkpoints", "these, over what the blocks' all-reduces send"): [
        ("costs.partitioned_checkpoints.overhead", "1 / (2 * ALL_REDUCES)", "1 / ALL_REDUCES"),
    ],
    ("zero.parameter_offload", "bytes of gradients that leave the device"): [
        ("zero.parameter_offload.Unit.after_backward", 'mean.to("cpu", copy=True)', "mean"),
    ],
    ("zero.parameter_offload", "elements on the host, and"): [
        ("zero.parameter_offload.map_files", "torch.from_file(", "(lambda *_, dtype: unit.shard)("),
    ],
    ("zero.parameter_offload", "most bytes of whole parameters"): [
        ("zero.parameter_offload.Unit.after_backward", "self.reshard()", "pass"),
    ],
    ("zero.parameter_offload", "bytes of parameters that come"): [
        ("costs.parameter_offload.crossing", "2 * micro", "micro"),
    ],
    ("zero.parameter_offload", "fetches that begin while"): [
        ("costs.parameter_offload.fetched_ahead", "(blocks - 1)", "blocks"),
    ],
    ("zero.constant_buffers", "all-reduces of 13,000 gradients through"): [
        ("zero.constant_buffers.fillings", "if not room:", "if True:"),
    ],
    ("zero.constant_buffers", "elements that differ from the sum"): [
        ("zero.constant_buffers.all_reduce_through", "piece.copy_(slot)", "pass"),
    ],
    ("zero.constant_buffers", "bytes for sending through a constant buffer"): [
        ("zero.constant_buffers.all_reduce_through", "= buffer[: sum(sizes)]", "= buffer.new_empty(sum(sizes))"),
        ("costs.constant_buffers.buffer_bytes", "elements if size is None else size", "elements"),
    ],
    ("zero.constant_buffers", "all-reduces of"): [
        ("costs.constant_buffers.rounds", "-(-elements // size)", "elements // size"),
    ],
    (
        "zero.defragmentation",
        "bytes that forward needs, checkpoints in a region",
        "largest gap after forward over all that is free, checkpoints",
    ): [
        ("zero.defragmentation.forward", "memory.free(output)", "pass"),
    ],
    ("zero.defragmentation", "bytes that forward needs without the region"): [
        ("zero.defragmentation.Memory.allocate", "if free >= size:", "if free > size:"),
        ("costs.defragmentation.needed_at_worst", "sum(temporaries)", "max(temporaries)"),
    ],
    ("zero.defragmentation", "bytes that forward needs, checkpoints in a region"): [
        ("zero.defragmentation.forward", "checkpoint * len(temporaries)", "checkpoint"),
    ],
    (
        "tests/checkpointing/test_resharding.py::test_of_a_view_only_its_own_numbers_are_saved",
        "claims are about what is loaded",
    ): [
        # Checkpointing: it has no formulas in minitrain.costs.
        ("checkpointing.resharding.save", '.to("cpu", copy=True)', '.to("cpu")'),
    ],
    ("tests/checkpointing/test_resharding.py::test_replicas_do_not_hide_a_hole", "the demo's files have no hole"): [
        ("checkpointing.resharding.load", "assert filled.all()", "assert filled.any()"),
    ],
    ("checkpointing.resharding", "small form: bytes that this rank"): [
        ("checkpointing.resharding.load", "if filled[target].all():", "if False:"),
    ],
    (
        "tests/checkpointing/test_checkpoint.py::test_what_saving_and_loading_take_besides_the_shards",
        "claims are about what is in the files",
    ): [
        ("checkpointing.full.shards.WritePlan.resolve_data", "tensor.is_contiguous()", "not tensor.is_contiguous()"),
    ],
    ("tests/checkpointing/test_checkpoint.py::test_a_flipped_byte_anywhere_is_found", "the demo damages nothing"): [
        ("checkpointing.full.manifest.damage", "elif checksum(path / name) != expected:", "elif False:"),
    ],
    ("checkpointing.checkpoint", "elements changed from each"): [
        ("checkpointing.full.shards.flat_shards", "offset += elements", "offset = elements"),
    ],
}
