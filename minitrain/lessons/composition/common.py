"""Shared by the demos and tests of this chapter: one device in plain PyTorch, and a rank's distance from it."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.composition.gradients import gradient
from minitrain.composition.model import DTYPES, ROUTERS, make_config
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.composition.step import Report, Training
from minitrain.data.text import Samples, Text
from minitrain.mixture_of_experts.full.layer import auxiliary_loss, layers
from minitrain.mixture_of_experts.moe_gpt import replace_mlps
from minitrain.models import counter_rng
from minitrain.models.gpt import GPT
from minitrain.tensor_parallel.dropout_rng import place_dropout
from minitrain.tensor_parallel.full.parallelize import piece_of
from minitrain.train import build, forward_backward, update
from minitrain.zero.full.flat_shards import FlatShard

Tensors = dict[str, Tensor]
DROPOUT = 0.1


class OneDevice(NamedTuple):
    """What one device makes of a training.

    Attributes:
        reports: Of each step.
        gradients: Of the first step, before clipping, by the parameter's name.
        start: Weights before the first step.
        weights: Weights after the last.
        steps: How many steps.
    """

    reports: list[Report]
    gradients: Tensors
    start: Tensors
    weights: Tensors
    steps: int


def small_model(ranks: int, blocks: int = 1) -> Model:
    """A GPT that can be cut over so many ranks along any axis, `blocks` for each; its vocabulary divides by none."""
    heads = max(2, ranks)
    return Model(layers=max(2, blocks * ranks), hidden=4 * heads, heads=heads, positions=2 * heads, vocabulary=257)


def small_steps(ranks: int) -> Steps:
    """A batch that can be shared by so many ranks, in two parts each; few steps in float64."""
    return Steps(steps=4, batch=max(4, 2 * ranks), warmup=0, lr=3e-4, clip=1.0, dtype="float64")


def samples_of(settings: Settings) -> Samples:
    """The samples that a training takes."""
    return Samples(Text.load(settings.steps.data).training, settings.model.sizes.positions, settings.steps.seed)


@contextmanager
def shared_folder(world: World) -> Iterator[Path]:
    """A new folder in the one in which the ranks work, removed when all are done.

    The working folder is shared where ranks are on several machines. The usual place, /tmp, is not.

    Raises:
        ValueError: On every rank alike: some ranks do not see the folder.
    """
    made = tempfile.mkdtemp(prefix=".minitrain-", dir=Path.cwd()) if world.rank == 0 else ""
    folder = Path(gather_objects(made)[0])  # rank 0 says where
    try:
        if blind := [rank for rank, sees in enumerate(gather_objects(folder.is_dir())) if not sees]:
            raise ValueError(
                f"{folder}, which rank 0 has made, does not exist on rank {','.join(map(str, blind))}; "
                "start all ranks in a folder that their machines share"
            )
        yield folder
        gather_objects(None)  # no rank reads any more
    finally:
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def same_bits(world: World) -> Iterator[None]:
    """On a GPU, kernels that add in the same order each time; on a CPU all do."""
    if world.device.type == "cpu":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def one_device(settings: Settings, count: int, device: torch.device | str = "cpu") -> OneDevice:
    """Train in plain PyTorch: the whole model, the whole batch at once, torch's own optimizer and clipping.

    Args:
        settings: Its layout is not looked at.
        count: Steps to take.
        device: Where.
    """
    steps, samples = settings.steps, samples_of(settings)
    model = plain_model(settings).to(device)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": steps.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    sgd = steps.optimizer == "sgd"
    plain = torch.optim.SGD(groups, steps.lr) if sgd else torch.optim.AdamW(groups, steps.lr, betas=(0.9, 0.95))
    course = torch_course(plain, steps)
    reports, gradients, start = [], {}, _values(model)
    for number in range(count):
        plain.zero_grad()
        inputs, targets = (
            part.to(device) for part in samples.take(range(number * steps.batch, (number + 1) * steps.batch))
        )
        counter_rng.set_position(steps.seed, number)
        _, loss = model(inputs, targets)
        (loss + auxiliary_loss(model) if layers(model) else loss).backward()
        if number == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        norm = nn.utils.clip_grad_norm_(model.parameters(), steps.clip or float("inf"))
        reports.append(Report(loss.item(), norm.item(), plain.param_groups[0]["lr"]))
        plain.step()
        course.step()
    return OneDevice(reports, gradients, start, _values(model), count)


def torch_course(plain: torch.optim.Optimizer, steps: Steps) -> LRScheduler:
    """The schedule of the learning rate, from torch's own schedulers."""
    rest = max(1, steps.steps - steps.warmup)
    if steps.decay == "cosine":
        after: LRScheduler = CosineAnnealingLR(plain, rest, eta_min=steps.lr / 10)
    elif steps.decay == "wsd":
        stable, falling = rest - steps.falling, steps.falling  # of all steps but the warm-up
        after = LambdaLR(plain, lambda number: 1 - math.sqrt(max(0, number - stable) / falling))
    else:
        after = LinearLR(plain, 1.0, 0.0, rest) if steps.decay == "linear" else ConstantLR(plain, 1.0)
    if not steps.warmup:
        return after
    rising = LinearLR(plain, 1 / (steps.warmup + 1), 1.0, steps.warmup)
    return SequentialLR(plain, [rising, after], [steps.warmup])


def loss_by_torch(settings: Settings, weights: Tensors, tokens: Tensor, targets: Tensor) -> Tensor:
    """The loss of the GPT without experts and dropout, from torch's functions alone: no module of ours takes part."""
    heads = settings.model.sizes.heads
    table, hidden = weights["embedding.tokens.weight"], settings.model.sizes.hidden

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (hidden,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = F.embedding(tokens, table) + weights["embedding.positions.weight"]
    for block in (f"blocks.{number}" for number in range(settings.model.sizes.layers)):
        inside = norm(x, f"{block}.attention_norm")
        parts = [linear(inside, f"{block}.attention.{part}") for part in ("query", "key", "value")]
        query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + linear(mixed.transpose(1, 2).flatten(2), f"{block}.attention.output")
        wide = F.gelu(linear(norm(x, f"{block}.mlp_norm"), f"{block}.mlp.up"), approximate="tanh")
        x = x + linear(wide, f"{block}.mlp.down")
    logits = norm(x, "norm") @ table.t()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def plain_model(settings: Settings) -> nn.Module:
    """The reference GPT, experts in place of every second MLP if there are some."""
    model, seed = settings.model, settings.steps.seed
    gpt = GPT(make_config(model), seed).to(DTYPES[settings.steps.dtype])
    place_dropout(gpt)
    if model.experts:
        router = ROUTERS[model.router]
        replace_mlps(gpt, lambda block: router(model.sizes.hidden, model.experts, layer=block), seed=seed)
    return gpt


def _values(model: nn.Module) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def distance(settings: Settings, one: OneDevice, device: torch.device, losses: list[float] | None = None) -> Distance:
    """Make a training, train next to one device (`beside`), and give its groups back."""
    with closing(build(settings, device)) as training:
        return beside(training, one, losses)


class Distance(NamedTuple):
    """The largest absolute distances of this rank from one device.

    Attributes:
        reports: Of losses and norms, in any step.
        gradients: Of the first step's gradients, in this rank's shards.
        weights: Of the weights after the last step, in this rank's shards, and in what it holds whole.
    """

    reports: float
    gradients: float
    weights: float


def beside(training: Training, one: OneDevice, losses: list[float] | None = None) -> Distance:
    """Train for as many steps, and compare; `losses` takes those of each step."""
    samples, batch = samples_of(training.settings), training.settings.steps.batch
    reports = gradients = 0.0
    for number, expected in enumerate(one.reports):
        loss = forward_backward(training, number, number * batch, samples)
        if number == 0:
            gradients = max(far(found, own) for _, found, own in shards(training, one.gradients, gradient))
        found = update(training, number, number * batch, loss)
        if losses is not None:
            losses.append(found.loss)
        reports = max(reports, *(abs(a - b) for a, b in zip(found, expected, strict=True)))
    return Distance(reports, gradients, weights_apart(training, one.weights))


def weights_apart(training: Training, weights: Tensors) -> float:
    """The largest absolute distance of this rank's weights from one device's: of its shards, and of what is whole."""
    part, tp = training.part, training.axes.tp
    found = max(far(shard, own) for _, shard, own in shards(training, weights, lambda line: line.master))
    if training.settings.layout.zero == 3:
        return found  # nothing else is in memory between steps
    whole = (far(parameter, piece_of(weights[name], parameter, tp)) for name, parameter in part.parameters.items())
    return max(found, *whole)


def shards(
    training: Training, wholes: Mapping[str, Tensor], pick: Callable[[FlatShard], Tensor | None]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What lies in this rank's shards of lines: name, this rank's elements, and the same elements of one device.

    Args:
        training: This rank's.
        wholes: One device's tensors by name.
        pick: What of a line: its master, its gradient, a state of the optimizer.
    """
    for line, names in training.gradients.lines():
        by_key = dict(zip(line.parameters, names, strict=True))
        flat = pick(line)
        assert flat is not None
        for key, start, stop, offset in line.partition.segments(line.rank):
            like = torch.empty(line.partition.shapes[key], device="meta")  # stage 3 leaves a parameter no shape
            vars(like).update(vars(line.parameters[key]))
            own = piece_of(wholes[by_key[key]], like, training.axes.tp)
            yield by_key[key], flat[offset : offset + stop - start], own.flatten()[start:stop]


def far(found: Tensor, expected: Tensor) -> float:
    """The largest absolute distance between two tensors; 0 for empty ones."""
    if not found.numel():
        return 0.0
    return (found.detach().double() - expected.detach().double()).abs().max().item()


def rounding(settings: Settings) -> float:
    """6Ku, by which gradients of two layouts may differ, in the largest gradient; u is half of the dtype's eps.

    A sum of k terms is off by at most k·u of its terms' absolute values. K is the sum of the k on the way from a token
    to the loss and into a gradient: 9h + d + 2s for a layer (two norms of 2h, projections of h, h, h and 4h, scores of
    d, softmax and mixing of s), 2h + V for the ends, and the tokens of the batch. Backward is twice as long as forward,
    and two runs differ by twice that. This is a heuristic without a proof, because terms may cancel. But errors cancel
    too, and what is measured is far below.
    """
    size = settings.model.sizes
    layer = 9 * size.hidden + size.hidden // size.heads + 2 * size.positions
    way = size.layers * layer + 2 * size.hidden + size.vocabulary + settings.steps.batch * size.positions
    return 6 * way * torch.finfo(DTYPES[settings.steps.dtype]).eps / 2


def label(layout: Layout) -> str:
    """A layout in a few words, with its unusual settings."""
    parts = [str(layout)]
    if layout.cp > 1 and layout.cp_mode != "zigzag":
        parts.append(layout.cp_mode)
    if layout.pp > 1 and layout.schedule != "1f1b":
        parts.append(layout.schedule)
    if layout.zero:
        parts.append(f"ZeRO-{layout.zero}")
    if layout.sequence_parallel:
        parts.append("sequence-parallel")
    if layout.recompute != "none":
        parts.append(f"{layout.recompute} recomputation")
    return ", ".join(parts)
