"""A training step in a layout of ranks, put together from torch's own parts, as one would write it without minitrain.

DDP or FSDP2 along dp, `ZeroRedundancyOptimizer` for ZeRO-1, DTensor along tp with its sharded loss, and
`torch.distributed.pipelining` along pp. Torch has no layout with dp, tp and a plain all-reduce of gradients by public
names, so along dp beside tp it is FSDP2 without resharding, as torchtitan has it. A pipeline of torch knows no tied
weights, so the head has a weight of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from minitrain.comm.world import World
from minitrain.composition.layout_settings import ScheduleName
from minitrain.composition.model import make_config
from minitrain.composition.settings import Layout, Settings
from minitrain.data.text import Numbered, share
from minitrain.models.gpt import GPT, Block, Embedding
from minitrain.pipeline_parallel import splitting

SCHEDULES: dict[ScheduleName, Any] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}


class TorchStep:
    """The step of one layout; a call does forward, backward, clipping and AdamW on the first samples.

    It knows dp, tp, sequence_parallel, pp and its schedule, microbatches, and zero. `name` names the parts of torch.
    """

    def __init__(self, world: World, settings: Settings, samples: Numbered):
        self.world, self.settings, self.samples = world, settings, samples
        layout, steps = settings.layout, settings.steps
        assert not settings.model.sizes.tied
        self.mesh = init_device_mesh(
            world.device.type, (layout.pp, layout.dp, layout.tp), mesh_dim_names=("pp", "dp", "tp")
        )
        self.gpt = GPT(make_config(settings.model), seed=steps.seed).to(world.device)
        if layout.tp > 1:
            with_dtensor(self.gpt, self.mesh["tp"], layout.sequence_parallel)
        if steps.compile:
            for block in self.gpt.blocks:
                block.compile()
        self.place = self.mesh["pp"].get_local_rank()
        parts: Sequence[nn.Module] = [self.gpt]
        if layout.pp > 1:
            stages = layout.pp * (layout.chunks if layout.schedule == "interleaved" else 1)
            parts = splitting.split(self.gpt, splitting.evenly(self.gpt, stages))[self.place :: layout.pp]
        self.parts = nn.ModuleList(self._data_parallel(part, layout) if layout.dp > 1 else part for part in parts)
        parameters = list(self.parts.parameters())
        options = {"lr": steps.lr, "betas": (0.9, 0.95)}
        groups = [
            {"params": found, "weight_decay": steps.weight_decay if matrix else 0.0}
            for matrix in (True, False)
            for cut in (True, False)  # on GPUs a group's tensors are stepped together, and all or none must be DTensors
            if (found := [p for p in parameters if (p.dim() >= 2) == matrix and isinstance(p, DTensor) == cut])
        ]
        group = self.mesh["dp"].get_group()
        if layout.zero == 1:
            kind = torch.optim.AdamW
            self.optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(groups, kind, group, **options)
        else:
            self.optimizer = torch.optim.AdamW(groups, **options)
        self.name = _name(layout, steps.compile)
        self.forward_backward = self._pipeline(layout) if layout.pp > 1 else self._plain

    def __call__(self) -> tuple[float | None, float]:
        """A step; returns this rank's mean loss, None without the model's end, and the norm of the gradient."""
        layout, steps = self.settings.layout, self.settings.steps
        mine = share(0, steps.batch, self.mesh["dp"].get_local_rank(), layout.dp)
        inputs, targets = (part.to(self.world.device) for part in self.samples.take(mine))
        half = torch.autocast(self.world.device.type, torch.bfloat16, enabled=steps.dtype == "bfloat16")
        with half, loss_parallel() if layout.tp > 1 else nullcontext():
            loss = self.forward_backward(inputs, targets)
        norm = self.clip(steps.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return None if loss is None else loss.item(), norm.item()  # the trainer looks at each step's, too

    def clip(self, most: float) -> Tensor:
        """Scale gradients by the norm of those of the whole model, and return it."""
        parameters = list(self.parts.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        # One call takes either DTensors or tensors, and DTensors of one mesh.
        norm = torch.stack([whole(get_total_norm(same)) for same in by_kind(gradients)]).norm()
        if self.settings.layout.pp > 1:
            norm = norm.square()
            dist.all_reduce(norm, group=self.mesh["pp"].get_group())
            norm = norm.sqrt()
        for same in by_kind(parameters):
            clip_grads_with_norm_(same, most, norm)
        return norm

    def _data_parallel(self, module: nn.Module, layout: Layout) -> nn.Module:
        mesh = self.mesh["dp"]
        if layout.zero < 2 and layout.tp == 1:
            return DistributedDataParallel(module, process_group=mesh.get_group())
        reshard = layout.zero == 3
        for block in [layer for layer in module.modules() if isinstance(layer, Block)]:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
        return module

    def _plain(self, inputs: Tensor, targets: Tensor) -> Tensor:
        parts = self.settings.layout.microbatches
        losses = []
        for number, (some, their) in enumerate(zip(inputs.chunk(parts), targets.chunk(parts), strict=True)):
            with self._no_sync() if number < parts - 1 else nullcontext():
                _, loss = self.parts[0](some, their)
                (loss / parts).backward()
            losses.append(loss.detach())
        return torch.stack([local(loss) for loss in losses]).mean()

    def _no_sync(self) -> AbstractContextManager[object]:
        return self.parts[0].no_sync() if isinstance(self.parts[0], DistributedDataParallel) else nullcontext()

    def _pipeline(self, layout: Layout) -> Callable[[Tensor, Tensor], Tensor | None]:
        logging.getLogger("torch.distributed.pipelining").setLevel(logging.ERROR)
        group = self.mesh["pp"].get_group()
        count = layout.pp * len(self.parts)
        stages = [
            pipelining.PipelineStage(part, number, count, self.world.device, group=group)
            for number, part in zip(range(self.place, count, layout.pp), self.parts, strict=True)
        ]
        running: Any = stages if layout.schedule == "interleaved" else stages[0]
        schedule = SCHEDULES[layout.schedule](running, layout.microbatches, loss_fn=self.gpt.loss)

        def step(inputs: Tensor, targets: Tensor) -> Tensor | None:
            losses: list[Tensor] = []
            mine = (inputs,) if self.place == 0 else ()
            if self.place < layout.pp - 1:
                schedule.step(*mine)
                return None
            schedule.step(*mine, target=targets, losses=losses)
            return torch.stack([local(loss.detach()) for loss in losses]).mean()

        return step


def _name(layout: Layout, compiled: bool) -> str:
    along_dp = {0: "DDP", 1: "DDP, ZeroRedundancyOptimizer"}.get(layout.zero, "FSDP2")
    names = [along_dp if layout.tp == 1 else "FSDP2"] if layout.dp > 1 else []
    names += ["DTensor"] if layout.tp > 1 else []
    names += ["torch's pipelining"] if layout.pp > 1 else []
    return ("compiled " if compiled else "") + (", ".join(names) or "plain PyTorch")


def with_dtensor(gpt: GPT, mesh: DeviceMesh, sequence: bool) -> None:
    """DTensor's plan of its tutorials, with or without sequence parallelism; each rank keeps its part of the logits."""
    inner = Shard(1) if sequence else Replicate()
    gathered = PrepareModuleInput(input_layouts=inner, desired_input_layouts=Replicate())
    plan: dict[str, ParallelStyle] = {
        "attention": gathered,
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(output_layouts=inner),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=inner),
    }
    if sequence:
        plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel(), "mlp": gathered}
    for block in gpt.blocks:
        parallelize_module(block, mesh, plan)
    if sequence:
        gpt.embedding = DividedEmbedding(gpt.embedding)  # type: ignore[assignment]
    ends: dict[str, ParallelStyle] = {
        "embedding.tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=inner),
        "head": ColwiseParallel(input_layouts=inner, output_layouts=Shard(-1), use_local_output=False),
    }
    if sequence:
        ends |= {"norm": SequenceParallel()}
        ends |= {"embedding.positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))}
    parallelize_module(gpt, mesh, ends)


class DividedEmbedding(nn.Module):
    """The embedding of learned positions, whose output has this rank's tokens."""

    def __init__(self, embedding: Embedding):
        super().__init__()
        assert embedding.positions is not None
        self.tokens, self.positions = embedding.tokens, embedding.positions

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, which shares its memory; another tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """A DTensor's value over all its ranks; another tensor itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def by_kind(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Tensors in lists of DTensors of one mesh, or of none."""
    kinds: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return list(kinds.values())
