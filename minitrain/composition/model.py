"""A rank's part of the GPT, made without any rank ever holding all of it.

**Idea.** The model is first made without memory, on torch's `meta` device, where shapes are all there is. Each
technique then takes its cut, in this order: experts replace MLPs, tensor parallelism replaces layers, recomputation
wraps them, the pipeline keeps some. Only what is left gets memory, and its initial values, one tensor at a time. A
value depends on the parameter's name and the seed alone, so every layout starts from the same model.

**Source.** The order is that of torchtitan's `parallelize` and of Megatron-LM's model provider.

**What each rank holds.** The layers of its pipeline stages; of these its tensor-parallel pieces, and its experts.

**What is sent, when and why.** Nothing.

**Cost.** The memory of the part, and for a moment one whole tensor beside.

**Also called.** Meta-device or deferred initialization; `init_device_mesh` and `to_empty` (torchtitan).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minitrain.collectives.full import native
from minitrain.composition.layout import Axes
from minitrain.composition.settings import Model
from minitrain.mixture_of_experts import ExpertChoice, GShard, MoELayer, NoisyTopK, Router, Switch, all_to_all
from minitrain.mixture_of_experts.full.expert_parallel import Carrier, ExpertParallelLayer
from minitrain.mixture_of_experts.moe_gpt import expert_weight, replace_mlps, router_generator
from minitrain.models.gpt import GPT, GPTConfig, initial_weight
from minitrain.pipeline_parallel.full import tied
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.schedules import SCHEDULES
from minitrain.pipeline_parallel.splitting import Stage, evenly, split
from minitrain.recomputation.full import early_stop, selective
from minitrain.recomputation.full import every_block as full
from minitrain.sequence_parallel import megatron
from minitrain.tensor_parallel.dropout_rng import place_dropout
from minitrain.tensor_parallel.full.mappings import Collectives
from minitrain.tensor_parallel.parallelize import parallelize, piece_of

ROUTERS: dict[str, type[Router]] = {
    "noisy_top_k": NoisyTopK,
    "gshard": GShard,
    "switch": Switch,
    "expert_choice": ExpertChoice,
}
TIED, TABLE = "head.weight", "embedding.tokens.weight"  # the second name of a tied weight, and its first


@dataclass
class Part:
    """A rank's part of the model.

    Attributes:
        whole: The GPT itself where there is no pipeline; None where this rank has stages of it.
        stages: This rank's stages.
        loss: What comes behind the head.
        parameters: This rank's, by their names on one device, each once.
        shapes: The shapes of all of the model's parameters on one device, by name.
        experts: Names of this rank's experts' parameters.
        schedule: The pipeline's.
        ties: Parameters that several stages hold.
    """

    whole: GPT | None
    stages: list[Stage]
    loss: nn.Module
    parameters: dict[str, nn.Parameter]
    shapes: dict[str, torch.Size]
    experts: set[str]
    schedule: Schedule
    ties: list[tied.Tie]

    def holders(self, name: str) -> list[int]:
        """The pipeline ranks that hold a copy of the parameter, where there are several."""
        if name != TABLE or not self.ties:
            return []
        return sorted({self.schedule.rank_of(stage) for tie in self.ties for stage in tie.stages})


def make_config(model: Model) -> GPTConfig:
    """The configuration of the reference model of these sizes."""
    # A fused kernel would draw masks of its own, other ones in every layout.
    attention = "plain" if model.dropout else "sdpa"
    return GPTConfig(**vars(model.sizes), dropout=model.dropout, tied=model.tied, attention=attention)


def make_schedule(axes: Axes) -> Schedule:
    """The pipeline's schedule; with one rank along pp it is never used, but it says which stage is where."""
    layout = axes.layout
    if layout.pp == 1:
        return SCHEDULES["naive"](1, layout.microbatches)
    chunks = [layout.chunks] if layout.schedule == "interleaved" else []
    return SCHEDULES[layout.schedule](layout.pp, layout.microbatches, *chunks)


def make_part(
    model: Model,
    axes: Axes,
    seed: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    collectives: Collectives = native,
    carrier: Carrier = all_to_all.native,
) -> Part:
    """Make this rank's part. All ranks call it with the same arguments; nothing is sent.

    Args:
        model: Sizes and choices.
        axes: The ranks.
        seed: Of the initial weights.
        device: Where the part lives.
        dtype: Of the parameters.
        collectives: Who carries what tensor parallelism sends.
        carrier: Who carries tokens to experts.
    """
    config, layout = make_config(model), axes.layout
    with torch.device("meta"):
        gpt = GPT(config, seed)
        reference = GPT(config, seed) if model.experts else gpt  # before it is cut
        _put_in_experts(reference, model, layout.microbatches)
        shapes = {name: parameter.shape for name, parameter in reference.named_parameters()}
        if layout.tp > 1:
            cut = megatron.parallelize if layout.sequence_parallel else parallelize
            cut(gpt, axes.tp, collectives=collectives, check=False)
        else:
            place_dropout(gpt)
        # After tensor parallelism, which would cut the experts, too, and not know that they are computed together.
        _put_in_experts(gpt, model, layout.microbatches)
    if layout.ep > 1:
        for name, layer in [(n, m) for n, m in gpt.named_modules() if isinstance(m, MoELayer)]:
            gpt.set_submodule(name, ExpertParallelLayer(layer, axes.data, carrier))
    if layout.recompute == "selective":
        selective.recompute(gpt, early_stop.checkpoint)
    elif layout.recompute == "full":
        full.recompute(gpt.blocks, early_stop.checkpoint)
    schedule = make_schedule(axes)
    every = split(gpt, evenly(gpt, schedule.stages))
    ties = tied.ties(every)
    mine = [every[number] for number in schedule.stages_of(axes.place["pp"])]
    _give_memory(gpt if layout.pp == 1 else nn.ModuleList(mine), device)
    named: dict[str, nn.Parameter] = {}
    for name, parameter in (pair for stage in mine for pair in stage.named_in_model()):
        named.setdefault(TABLE if name == TIED and config.tied else name, parameter)
    experts = {name for name in named if ".mlp.experts." in name}
    whole = gpt if layout.pp == 1 else None
    part = Part(whole, mine, gpt.loss, named, shapes, experts, schedule, ties)
    _fill(part, model, axes, seed)
    for stage in mine:
        stage.to(dtype)
    return part


def _put_in_experts(gpt: GPT, model: Model, microbatches: int) -> None:
    """Replace every second block's MLP, if the model has experts."""
    if not model.experts:
        return
    router, hidden = ROUTERS[model.router], model.sizes.hidden
    # Each micro-batch's loss is divided by their number, and so is the routers' loss that rides along.
    replace_mlps(gpt, lambda block: router(hidden, model.experts, layer=block), riding_loss=1 / microbatches)


def _give_memory(module: nn.Module, device: torch.device) -> None:
    """Allocate what stands on `meta`. Shared weights stay shared, and what is said of a parameter stays said."""
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            places.setdefault(parameter, []).append((part, name))
    module.to_empty(device=device)
    for before, ((first, name), *others) in places.items():
        parameter = first.get_parameter(name)
        vars(parameter).update(vars(before))
        for part, other in others:
            setattr(part, other, parameter)


@torch.no_grad()
def _fill(part: Part, model: Model, axes: Axes, seed: int) -> None:
    """Set the initial values: each from its name and the seed, cut as the parameter is."""
    for name, parameter in part.parameters.items():
        whole = initial_value(name, part.shapes[name], model, seed).to(parameter.device)
        parameter.copy_(piece_of(whole, parameter, axes.tp))


def initial_value(name: str, shape: torch.Size, model: Model, seed: int) -> Tensor:
    """The whole initial value of a parameter of the GPT, with experts or without; the same on every rank."""
    layers = model.sizes.layers
    if ".mlp.experts." in name:
        block, _, _, expert, rest = name.removeprefix("blocks.").split(".", 4)
        return expert_weight(int(block), int(expert), rest, shape, layers, seed)
    if ".mlp.router." in name:
        block, _, _, rest = name.removeprefix("blocks.").split(".", 3)
        router = ROUTERS[model.router](model.sizes.hidden, model.experts, layer=int(block))
        router.reset_parameters(router_generator(int(block), seed))
        return router.get_parameter(rest).detach()
    return initial_weight(name, shape, layers, seed)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
