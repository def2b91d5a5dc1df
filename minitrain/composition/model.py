"""A rank's part of the GPT, made without any rank ever holding all of it.

**Idea.** The model is first made without memory, on torch's `meta` device, which has shapes only. Each technique then
takes its part, in this order: tensor parallelism replaces layers, context parallelism the core of attention, experts
replace MLPs, recomputation wraps them, the pipeline keeps some. Only the rest gets memory and initial values, one
tensor at a time.

**Source.** The order is that of torchtitan's `parallelize` and of Megatron-LM's model provider.
**Cost.** The memory of the layers of this rank's pipeline stages (of these its tensor-parallel shards, and its
experts), and for a moment one unsharded tensor as well.
Also called meta-device or deferred initialization, fake tensors; `init_device_mesh` and `to_empty` (torchtitan).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import native
from minitrain.comm.comm import Collectives, Comm
from minitrain.composition.layout import Axes
from minitrain.composition.presets import ROUTER_OPTIONS
from minitrain.composition.settings import Layout, Model, Steps, check_trained
from minitrain.context_parallel.full import parallelize as context_parallel
from minitrain.mixture_of_experts import (
    BiasBalanced,
    ExpertChoice,
    MoELayer,
    Router,
    Switch,
    TopK,
    all_to_all,
)
from minitrain.mixture_of_experts.full.expert_parallel import Carrier, ExpertParallelLayer
from minitrain.mixture_of_experts.full.tensor_parallel import cut
from minitrain.mixture_of_experts.moe_gpt import expert_weight, replace_mlps, router_generator
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT, Block, initial_weight
from minitrain.pipeline_parallel.full import tied
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.schedules import SCHEDULES
from minitrain.pipeline_parallel.splitting import Stage, evenly, split
from minitrain.recomputation.full import early_stop, selective
from minitrain.recomputation.full import every_block as full
from minitrain.sequence_parallel import megatron
from minitrain.tensor_parallel.dropout_rng import place_dropout
from minitrain.tensor_parallel.full.parallelize import parallelize, piece_of

ROUTERS: dict[str, type[Router]] = {
    "switch": Switch,
    "expert_choice": ExpertChoice,
    "top_k": TopK,
    "bias_balanced": BiasBalanced,
}
# What parameters begin in. 16 bits are rounded from float32, which the optimizer goes on with.
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32, "float16": torch.float32}
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
TIED, TABLE = "head.weight", "embedding.tokens.weight"  # the second name of a tied weight, and its first


@dataclass
class Part:
    """A rank's part of the model."""

    whole: GPT | None  # the GPT itself where there is no pipeline; None where this rank has stages of it
    stages: list[Stage]
    loss: nn.Module  # the part after the head
    schedule: Schedule
    ties: list[tied.Tie]  # parameters that several stages hold
    shapes: dict[str, torch.Size]  # of all of the model's parameters on one device, by name
    # This rank's, by their names on one device, each once; none before they have memory.
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)

    @property
    def experts(self) -> set[str]:
        return {name for name in self.parameters if ".mlp.experts." in name}

    @property
    def routers(self) -> dict[str, BiasBalanced]:
        """The routers that keep a bias, by their names on one device."""
        layers = [pair for stage in self.stages for pair in zip(stage.names, stage, strict=True)]
        parts = [(f"{name}.{rest}", part) for name, layer in layers for rest, part in layer.named_modules()]
        return {name: part for name, part in parts if isinstance(part, BiasBalanced)}

    def holders(self, name: str) -> list[int]:
        """The pipeline ranks that hold a copy of the parameter, where there are several."""
        if name != TABLE or not self.ties:
            return []
        return sorted({self.schedule.rank_of(stage) for tie in self.ties for stage in tie.stages})


def make_config(model: Model) -> GPTConfig:
    """The configuration of the reference model of these sizes."""
    check_trained(model)
    # A fused kernel would draw masks of its own, different ones in every layout.
    attention = "plain" if model.dropout else "sdpa"
    # Of experts it knows nothing; `insert_experts` puts them in.
    known = {each.name for each in fields(GPTConfig)}
    sizes = {name: value for name, value in vars(model.sizes).items() if name in known}
    return GPTConfig(**sizes, dropout=model.dropout, attention=attention)


def make_schedule(axes: Axes) -> Schedule:
    """The pipeline's schedule; with one rank along pp it is never used, except to find the stages."""
    layout = axes.layout
    if layout.pp == 1:
        return SCHEDULES["naive"](1, layout.microbatches)
    chunks = [layout.chunks] if layout.schedule == "interleaved" else []
    return SCHEDULES[layout.schedule](layout.pp, layout.microbatches, *chunks)


def make_gpt(model: Model, seed: int) -> GPT:
    """The whole GPT on torch's `meta` device: shapes, and no memory."""
    with torch.device("meta"):
        return GPT(make_config(model), seed)


def apply_tensor_parallel(gpt: GPT, axes: Axes, collectives: Collectives = native) -> None:
    """Leave this rank its part of every matrix; with sequence parallelism, of the activations between them, too."""
    # New layers get no memory either.
    with torch.device("meta"):
        if axes.layout.tp == 1:
            # Masks belong to tokens in every layout, so on one device as well.
            place_dropout(gpt)
        else:
            divide = megatron.parallelize if axes.layout.sequence_parallel else parallelize
            divide(gpt, Comm(axes.tp, collectives, check=False))


def insert_experts(gpt: GPT, model: Model, microbatches: int) -> None:
    """Replace the MLPs of some blocks, if the model has experts.

    After tensor parallelism, which would also cut the experts, each with messages of its own.
    """
    if model.sizes.experts:
        with torch.device("meta"):
            # Each micro-batch's loss is divided by their number, and so is the routers' loss that rides along.
            replace_mlps(gpt, **mixtures(model), riding_loss=1 / microbatches)


def mixtures(model: Model) -> dict[str, Any]:
    """The arguments of `replace_mlps`: which blocks have experts, of what width, and how they are chosen."""
    sizes = model.sizes
    blocks = {"every": sizes.mixture_every, "first": sizes.dense_first}
    widths = {"expert_hidden": sizes.expert_hidden, "shared": sizes.shared_experts}
    return {"make_router": partial(make_router, model), **blocks, **widths}


def make_router(model: Model, block: int) -> Router:
    """The router of a block."""
    sizes = model.sizes
    options = {"choices": sizes.experts_per_token}
    options |= {option: getattr(model, name) for name, (option, _) in ROUTER_OPTIONS.items()}
    # Without a number, the router's own.
    given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    return ROUTERS[sizes.router](sizes.hidden, sizes.experts, layer=block, **given)


def cut_experts(gpt: GPT, axes: Axes, collectives: Collectives = native) -> None:
    """Leave this rank its part of every expert, with one sum over the tensor-parallel ranks for all of a mixture."""
    if axes.layout.tp > 1:
        for layer in (module for module in gpt.modules() if isinstance(module, MoELayer)):
            cut(layer, Comm(axes.tp, collectives, check=False), axes.layout.sequence_parallel)


def apply_expert_parallel(gpt: GPT, axes: Axes, carrier: Carrier = all_to_all.native) -> None:
    """Leave this rank its share of the experts."""
    if axes.layout.ep > 1:
        for name, layer in [(n, m) for n, m in gpt.named_modules() if isinstance(m, MoELayer)]:
            gpt.set_submodule(name, ExpertParallelLayer(layer, axes.data, carrier))


def apply_context_parallel(gpt: GPT, axes: Axes) -> None:
    """Have attention reach the tokens of the ranks along cp; all else treats each token by itself."""
    if axes.layout.cp > 1:
        comm = Comm(axes.cp, check=False)
        context_parallel.parallelize(gpt, comm, axes.layout.cp_mode, gpt.config.positions)


def apply_recomputation(gpt: GPT, layout: Layout) -> None:
    """Have attention's core, or whole blocks, computed again in backward, if requested."""
    if layout.recompute == "selective":
        selective.recompute(gpt, early_stop.checkpoint)
    elif layout.recompute == "full":
        full.recompute(gpt.blocks, early_stop.checkpoint)


def cut_stages(gpt: GPT, model: Model, axes: Axes) -> Part:
    """Cut the model into the pipeline's stages, and keep this rank's. They still have no memory."""
    schedule = make_schedule(axes)
    every = split(gpt, evenly(gpt, schedule.stages))
    mine = [every[number] for number in schedule.stages_of(axes.place["pp"])]
    whole = gpt if axes.layout.pp == 1 else None
    # Ties while all stages exist, and shapes of an uncut model: this one's are those of pieces.
    return Part(whole, mine, gpt.loss, schedule, tied.ties(every), shapes_of(model))


def materialize(part: Part, model: Model, axes: Axes, steps: Steps, device: torch.device) -> None:
    """Allocate what this rank has kept, and set its initial values: one whole tensor at a time, cut as parameters are.

    A value depends on the parameter's name and the seed alone, so every layout starts from the same model.
    """
    _give_memory(part.whole or nn.ModuleList(part.stages), device)
    for name, parameter in (pair for stage in part.stages for pair in stage.named_in_model()):
        # The last stage knows a tied weight by the head's name only.
        part.parameters.setdefault(TABLE if name == TIED and model.sizes.tied else name, parameter)
    with torch.no_grad():
        for name, parameter in part.parameters.items():
            # Drawn on the CPU, whose numbers do not depend on the device of the training.
            made = initial_value(name, part.shapes[name], model, steps.seed).to(device)
            parameter.copy_(piece_of(made, parameter, axes.tp))
            del made  # or it would still be held while the next one is made
        for router in part.routers.values():
            router.reset_bias()
    for stage in part.stages:
        stage.to(DTYPES[steps.dtype])


def apply_compile(part: Part, steps: Steps) -> None:
    """Compile each block with torch.compile, if requested."""
    for block in (layer for stage in part.stages for layer in stage if isinstance(layer, Block) and steps.compile):
        block.compile()


def shapes_of(model: Model) -> dict[str, torch.Size]:
    """The shapes of all of the model's parameters on one device, by name."""
    whole = make_gpt(model, 0)
    insert_experts(whole, model, 1)
    return {name: parameter.shape for name, parameter in whole.named_parameters()}


def _give_memory(module: nn.Module, device: torch.device) -> None:
    """Allocate the tensors on `meta`. Shared weights stay shared, and parameters keep their layout attributes."""
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            places.setdefault(parameter, []).append((part, name))
    module.to_empty(device=device)
    for before, ((first, name), *others) in places.items():
        parameter = first.get_parameter(name)
        # `to_empty` makes new parameters, without attributes and one for each name.
        vars(parameter).update(vars(before))
        for part, other in others:
            setattr(part, other, parameter)


def initial_value(name: str, shape: torch.Size, model: Model, seed: int) -> Tensor:
    """The whole initial value of a parameter of the GPT, with experts or without; the same on every rank."""
    layers = model.sizes.layers
    if ".mlp.shared." in name:
        name = name.replace("mlp.shared", "mlp.experts.shared")
    if ".mlp.experts." in name:
        block, _, _, expert, rest = name.removeprefix("blocks.").split(".", 4)
        return expert_weight(int(block), expert, rest, shape, layers, seed)
    if ".mlp.router." in name:
        block, _, _, rest = name.removeprefix("blocks.").split(".", 3)
        # A small one, made for its own rule of initial weights.
        router = make_router(model, int(block))
        router.reset_parameters(router_generator(int(block), seed))
        return router.get_parameter(rest).detach()
    return initial_weight(name, shape, layers, seed)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
