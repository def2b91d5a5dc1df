"""Mistakes in the chapters of ZeRO and of checkpointing."""

from tests.mutations import Mutation

STAGE1, STAGE2, STAGE3 = (f"minitrain.zero.stage{number}" for number in (1, 2, 3))
OFFLOAD, FULL = "minitrain.zero.offload", "minitrain.zero.full"
HYBRID = "minitrain.zero.hybrid"
PARTITIONED = "minitrain.zero.partitioned_checkpoints"
PARAMETERS = "minitrain.zero.parameter_offload"
INSIDE = "minitrain.zero.step_in_backward"
BUFFERS, DEFRAGMENTATION = "minitrain.zero.constant_buffers", "minitrain.zero.defragmentation"
THEORY, HYBRID_THEORY = "minitrain.costs.zero", "minitrain.costs.hybrid_sharding"
TIME = "minitrain.lessons.zero.step_time.step_time"
RESHARDING, CHECKPOINT = "minitrain.checkpointing.resharding", "minitrain.checkpointing.checkpoint"
SHARDS = "minitrain.checkpointing.full.shards"

MUTATIONS = [
    # The practice of ZeRO.
    Mutation(
        f"{STAGE1}.Zero1.synchronize",
        "mul_(1 / self.ranks)",
        "mul_(1.0)",
        STAGE1,
        ("small form: elements that differ", "small form: weights that differ"),
    ),
    Mutation(f"{STAGE2}.Zero2.reduce", "parameter.grad = None", "pass", STAGE2, "small form: bytes of gradients"),
    Mutation(
        f"{STAGE2}.Zero2.reduce",
        "parameter.grad.mul_(1 / self.ranks)",
        "parameter.grad",
        STAGE2,
        "small form: weights that differ",
    ),
    Mutation(
        f"{INSIDE}.StepInBackward.arrive",
        "parameter.grad = None",
        "pass",
        INSIDE,
        "most bytes of gradients at once, stepped inside",
    ),
    Mutation(
        f"{INSIDE}.StepInBackward.arrive",
        "self.optimizers[parameter].step()",
        "len(self.stepped) % 2 and self.optimizers[parameter].step()",
        INSIDE,
        ("weights that differ after 3 steps", "layers already stepped"),
    ),
    Mutation(
        f"{INSIDE}.StepInBackward.arrive",
        "self.stepped.add(parameter)",
        "pass",
        test="tests/zero/test_step_in_backward.py::test_a_second_micro_batch_is_refused",
        why="a demo does nothing that is refused",
    ),
    Mutation(
        f"{STAGE3}.Unit.after_backward", "mul_(1 / self.ranks)", "mul_(1.0)", STAGE3, "small form: weights that differ"
    ),
    Mutation(
        f"{STAGE3}.Unit.reshard",
        "self.flat.untyped_storage().resize_(0)",
        "pass",
        STAGE3,
        ("small form: most bytes of whole parameters", "small form: bytes of parameters, gradients"),
    ),
    Mutation(
        f"{FULL}.offload.ZeroOffload._copy_master_to_shard",
        ".to(line.shard.dtype)",
        "",
        test="tests/zero/test_offload.py::test_pools_share_nothing_and_every_crossing_is_counted",
        why="the lesson counts what crosses in the small form, which has one dtype",
    ),
    Mutation(
        f"{OFFLOAD}.ZeroOffload.step", ".copy_(shard)", ".copy_(shard.double())", OFFLOAD, "bytes copied to the device"
    ),
    Mutation(
        "minitrain.comm.clip_grad_norm._norm",
        "comm.all_reduce(square).wait()",
        "pass",
        test="tests/zero/test_sharded.py::test_trains_like_ddp",
        why="no claim is about clipping, which small forms leave out",
    ),
    Mutation(
        f"{FULL}.unshard_hooks.UnshardHooks._unshard_and_wait",
        "following is not None and self.prefetch",
        "following is not None",
        test="tests/zero/test_stage3.py::test_the_time_of_a_step_is_the_formulas",
        why="the lesson's step prefetches",
    ),
    Mutation(
        f"{FULL}.sharded.Sharded._master_dtype",
        "torch.promote_types(dtype, torch.float32)",
        "self.compute_dtype",
        test="tests/zero/test_sharded.py::test_each_stage_holds_what_theory_says",
        why="the lesson counts what the small form holds, which has no masters",
    ),
    Mutation(
        f"{FULL}.stage1.Zero1._arrive",
        "while self._next < len(self._turns) and",
        "while not self._turns and",
        STAGE1,
        "full form: time of a step of 4 layers, messages under",
    ),
    Mutation(
        f"{FULL}.sharded.Sharded._all_gather_parameters",
        "if not self._travels:",
        "if self._gathers:",
        STAGE1,
        "full form: time of a step of 4 layers, messages under",
    ),
    Mutation(
        f"{FULL}.stage2.Zero2._start",
        "if self.drain:",
        "if not self.drain:",
        STAGE2,
        "full form: most bytes of gradients",
    ),
    Mutation(
        f"{FULL}.stage2.Collector.add",
        "self.shard.add_(part)",
        "self.shard.copy_(part)",
        STAGE2,
        "small form: elements that differ",
    ),
    Mutation(
        f"{FULL}.stage2.Collector.take",
        "self._views[name].zero_()",
        "pass",
        test="tests/zero/test_sharded.py::test_unused_parameters_count_as_zeros",
        why="the lesson's model has no unused parameters, which small forms refuse",
    ),
    # Its theory.
    Mutation(
        f"{THEORY}.state_bytes",
        "stage >= first",
        "stage > first",
        test="tests/costs/test_zero.py::test_the_papers_figure_1",
        why="demos count the bytes of whole buffers, by `held`",
    ),
    Mutation(f"{THEORY}.volume", "micro_batches + 1", "micro_batches", STAGE2, "small form: bytes of reduce-scatters"),
    Mutation(
        f"{THEORY}.held",
        "shard if stage >= 2",
        "shard if stage >= 1",
        test="tests/zero/test_sharded.py::test_each_stage_holds_what_theory_says",
        why="stage 1's lesson counts its states only",
    ),
    Mutation(f"{THEORY}.held", "shard if stage == 3 else whole", "shard", OFFLOAD, "small form: bytes on the device"),
    Mutation(
        f"{THEORY}.shard_elements",
        "-(-elements // ranks)",
        "elements // ranks",
        STAGE3,
        "small form: bytes of parameters, gra",
    ),
    Mutation(
        f"{THEORY}.step_traffic",
        "2 * micro_batches if stage == 3",
        "micro_batches if stage == 3",
        test="tests/costs/test_zero.py::test_a_step_sends_its_volume",
        why="the lesson counts what collectives carry, not what a ring sends",
    ),
    Mutation(
        f"{THEORY}.gradient_peak",
        "this + following for",
        "this + 2 * following for",
        STAGE2,
        "full form: most bytes of gradients",
    ),
    Mutation(
        f"{THEORY}.gradient_peak",
        "default=0) + largest",
        "default=0)",
        STAGE2,
        "full form: most bytes of gradients",
    ),
    Mutation(
        TIME, "(layers - 2) * max", "(layers // 2) * max", STAGE3, "full form: time of a step of 4 layers, the next"
    ),
    Mutation(TIME, "max(forward, carry)", "carry", STAGE3, "full form: time of a step of 4 layers, the next"),
    # Hybrid sharding.
    Mutation(
        f"{HYBRID}.HybridZero3.synchronize",
        "all_reduce(gradient, self.replicas).wait()",
        "pass",
        HYBRID,
        "small form: bytes of all-reduces across nodes",
    ),
    Mutation(
        f"{HYBRID}.HybridZero3.__init__",
        "unit.ranks *= nodes",
        "pass",
        HYBRID,
        "small form: elements that differ from the full form's",
    ),
    Mutation(
        f"{FULL}.hybrid.HybridZero3._prepare",
        "self.ranks * self.replicas.ranks",
        "self.ranks",
        test="tests/zero/test_sharded.py::test_trains_like_ddp",
        why="the lesson compares the small form's gradients with one device's",
    ),
    Mutation(
        f"{FULL}.hybrid.HybridZero3._broadcast_states",
        "super()._broadcast_states(self.replicas)",
        "pass",
        test="tests/zero/test_sharded.py::test_trains_like_ddp",
        why="a small form's ranks start with equal weights",
    ),
    Mutation(
        f"{HYBRID_THEORY}.out_of_a_node",
        "range(node * local, (node + 1) * local)",
        "range(node * local, node * local + 1)",
        HYBRID,
        "bytes that leave a node in a step of A = 3 micro-batches, hybrid",
    ),
    Mutation(
        f"{HYBRID_THEORY}.out_of_a_node_without",
        "(ranks - 1) // ranks",
        "(local - 1) // local",
        HYBRID,
        "bytes that leave a node in a step of A = 3 micro-batches, stage 3",
    ),
    # Partitioned checkpoints.
    Mutation(f"{PARTITIONED}.Partitioned.forward", "part.clone()", "part", PARTITIONED, "bytes of checkpoints on"),
    Mutation(
        f"{PARTITIONED}.Partitioned.forward", 'part.to("cpu", copy=True)', "part.clone()", PARTITIONED, "bytes of check"
    ),
    Mutation(
        f"{PARTITIONED}.Partitioned.backward",
        "all_gather(mine, ctx.group, into=flat).wait()",
        "pass",
        PARTITIONED,
        "bytes sent by this rank to gather checkpoints",
    ),
    Mutation(
        f"{PARTITIONED}.Partitioned.forward",
        "chunk(ranks)[rank]",
        "chunk(ranks)[0]",
        PARTITIONED,
        "elements of gradients that differ",
    ),
    Mutation(
        "minitrain.costs.partitioned_checkpoints.part",
        "-(-elements // ranks)",
        "elements // ranks",
        PARTITIONED,
        "bytes of checkpoints on",
    ),
    Mutation(
        "minitrain.costs.partitioned_checkpoints.overhead",
        "1 / (2 * ALL_REDUCES)",
        "1 / ALL_REDUCES",
        PARTITIONED,
        "these, over what the blocks' all-reduces send",
    ),
    # Parameters offloaded.
    Mutation(
        f"{PARAMETERS}.Unit.after_backward",
        'mean.to("cpu", copy=True)',
        "mean",
        PARAMETERS,
        "bytes of gradients that leave the device",
    ),
    Mutation(
        f"{PARAMETERS}.map_files",
        "torch.from_file(",
        "(lambda *_, dtype: unit.shard)(",
        PARAMETERS,
        "elements on the host, and",
    ),
    Mutation(
        f"{PARAMETERS}.Unit.after_backward", "self.reshard()", "pass", PARAMETERS, "most bytes of whole parameters"
    ),
    Mutation(
        "minitrain.costs.parameter_offload.crossing", "2 * micro", "micro", PARAMETERS, "bytes of parameters that come"
    ),
    Mutation(
        "minitrain.costs.parameter_offload.fetched_ahead",
        "(blocks - 1)",
        "blocks",
        PARAMETERS,
        "fetches that begin while",
    ),
    # Constant buffers.
    Mutation(f"{BUFFERS}.fillings", "if not room:", "if True:", BUFFERS, "all-reduces of 13,000 gradients through"),
    Mutation(
        f"{BUFFERS}.all_reduce_through", "piece.copy_(slot)", "pass", BUFFERS, "elements that differ from the sum"
    ),
    Mutation(
        f"{BUFFERS}.all_reduce_through",
        "filled = buffer[: sum(sizes)]",
        "filled = buffer.new_empty(sum(sizes))",
        BUFFERS,
        "bytes for sending through a constant buffer",
    ),
    Mutation(
        "minitrain.costs.constant_buffers.rounds", "-(-elements // size)", "elements // size", BUFFERS, "all-reduces of"
    ),
    Mutation(
        "minitrain.costs.constant_buffers.buffer_bytes",
        "elements if size is None else size",
        "elements",
        BUFFERS,
        "bytes for sending through a constant buffer",
    ),
    # Defragmentation.
    Mutation(
        f"{DEFRAGMENTATION}.forward",
        "memory.free(output)",
        "pass",
        DEFRAGMENTATION,
        (
            "bytes that forward needs, checkpoints in a region",
            "largest gap after forward over all that is free, checkpoints",
        ),
    ),
    Mutation(
        f"{DEFRAGMENTATION}.Memory.allocate",
        "if free >= size:",
        "if free > size:",
        DEFRAGMENTATION,
        "bytes that forward needs without the region",
    ),
    Mutation(
        f"{DEFRAGMENTATION}.forward",
        "checkpoint * len(temporaries)",
        "checkpoint",
        DEFRAGMENTATION,
        "bytes that forward needs, checkpoints in a region",
    ),
    Mutation(
        "minitrain.costs.defragmentation.needed_at_worst",
        "sum(temporaries)",
        "max(temporaries)",
        DEFRAGMENTATION,
        "bytes that forward needs without the region",
    ),
    # Checkpointing: it has no formulas in minitrain.costs.
    Mutation(
        f"{RESHARDING}.save",
        '.to("cpu", copy=True)',
        '.to("cpu")',
        test="tests/checkpointing/test_resharding.py::test_of_a_view_only_its_own_numbers_are_saved",
        why="claims are about what is loaded",
    ),
    Mutation(
        f"{RESHARDING}.load",
        "assert filled.all()",
        "assert filled.any()",
        test="tests/checkpointing/test_resharding.py::test_replicas_do_not_hide_a_hole",
        why="the demo's files have no hole",
    ),
    Mutation(
        f"{RESHARDING}.load", "if filled[target].all():", "if False:", RESHARDING, "small form: bytes that this rank"
    ),
    Mutation(
        f"{SHARDS}.WritePlan.resolve_data",
        "tensor.is_contiguous()",
        "not tensor.is_contiguous()",
        test="tests/checkpointing/test_checkpoint.py::test_what_saving_and_loading_take_besides_the_shards",
        why="claims are about what is in the files",
    ),
    Mutation(
        "minitrain.checkpointing.full.manifest.damage",
        "elif checksum(path / name) != expected:",
        "elif False:",
        test="tests/checkpointing/test_checkpoint.py::test_a_flipped_byte_anywhere_is_found",
        why="the demo damages nothing",
    ),
    Mutation(
        f"{SHARDS}.flat_shards", "offset += elements", "offset = elements", CHECKPOINT, "elements changed from each"
    ),
]
