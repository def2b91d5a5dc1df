"""Shared by the lessons and tests of this chapter: one device in plain PyTorch, and a rank's distance from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minitrain.composition.gradients import gradient
from minitrain.composition.model import DTYPES, make_config, mixtures
from minitrain.composition.optimizer import learning_rate
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.composition.step import Report, Training
from minitrain.data.text import Samples, Text
from minitrain.lessons.rows import most
from minitrain.mixture_of_experts.full.bias_balanced import BiasBalanced
from minitrain.mixture_of_experts.full.layer import auxiliary_loss, layers
from minitrain.mixture_of_experts.moe_gpt import replace_mlps
from minitrain.models import counter_rng
from minitrain.models.gpt import GPT
from minitrain.tensor_parallel.dropout_rng import place_dropout
from minitrain.tensor_parallel.full.parallelize import piece_of
from minitrain.train import build, forward_backward, update
from minitrain.zero.full.flat_shards import FlatShard

Tensors = dict[str, Tensor]


def small_model(ranks: int) -> Model:
    """A GPT that can be cut over so many ranks along any axis; its vocabulary divides by none."""
    heads = max(2, ranks)
    return Model(layers=max(2, ranks), hidden=4 * heads, heads=heads, positions=2 * heads, vocabulary=257)


def small_steps(ranks: int) -> Steps:
    """A batch that can be shared by so many ranks, in two parts each; few steps in float64."""
    return Steps(steps=4, batch=max(4, 2 * ranks), warmup=0, lr=3e-4, clip=1.0, dtype="float64")


def samples_of(settings: Settings) -> Samples:
    """The samples that a training takes."""
    return Samples(Text.load(settings.steps.data).training, settings.model.sizes.positions, settings.steps.seed)


def plain_model(settings: Settings) -> nn.Module:
    """The reference GPT, experts in place of some MLPs if there are some."""
    model, seed = settings.model, settings.steps.seed
    gpt = GPT(make_config(model), seed).to(DTYPES[settings.steps.dtype])
    place_dropout(gpt)
    if model.sizes.experts:
        replace_mlps(gpt, **mixtures(model), seed=seed)
    return gpt


class OneDevice(NamedTuple):
    """Reports of each step, gradients of the first before clipping, weights before it and after the last, by name."""

    reports: list[Report]
    gradients: Tensors
    start: Tensors
    weights: Tensors


def one_device(settings: Settings, count: int, device: torch.device | str = "cpu") -> OneDevice:
    """Train in plain PyTorch: the whole model, the whole batch at once, torch's own optimizer and clipping."""
    steps, samples = settings.steps, samples_of(settings)
    model = plain_model(settings).to(device)
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == matrix] for matrix in (True, False))
    groups = [{"params": matrices, "weight_decay": steps.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    sgd = steps.optimizer == "sgd"
    plain = torch.optim.SGD(groups, steps.lr) if sgd else torch.optim.AdamW(groups, steps.lr, betas=(0.9, 0.95))
    reports, gradients = [], {}
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for number in range(count):
        plain.zero_grad()
        inputs, targets = samples.take(range(number * steps.batch, (number + 1) * steps.batch))
        counter_rng.set_position(steps.seed, number)
        _, loss = model(inputs.to(device), targets.to(device))
        (loss + auxiliary_loss(model) if layers(model) else loss).backward()
        if number == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        norm = nn.utils.clip_grad_norm_(model.parameters(), steps.clip or float("inf"))
        rate = learning_rate(steps, number)  # tests compare it with torch's schedulers
        for group in plain.param_groups:
            group["lr"] = rate
        reports.append(Report(loss.item(), norm.item(), rate))
        plain.step()
        for router in (part for part in model.modules() if isinstance(part, BiasBalanced)):
            router.learn(router.load)
    # With the biases of routers, which are no parameters.
    return OneDevice(reports, gradients, start, {name: value.detach() for name, value in model.state_dict().items()})


class Distance(NamedTuple):
    """The largest distances of this rank from one device: of losses and norms in any step, of the first step's
    gradients in its shards, and of the last weights in its shards and in what it holds whole.
    """

    reports: float
    gradients: float
    weights: float


def distance(settings: Settings, one: OneDevice, device: torch.device) -> Distance:
    """Make a training, train next to one device (`beside`), and give its groups back."""
    with closing(build(settings, device)) as training:
        return beside(training, one)


def beside(training: Training, one: OneDevice) -> Distance:
    """Train for as many steps, and compare."""
    samples, batch, tp = samples_of(training.settings), training.settings.steps.batch, training.axes.tp
    reports = gradients = 0.0
    for number, expected in enumerate(one.reports):
        loss = forward_backward(training, number, number * batch, samples)
        if number == 0:
            gradients = most(far(found, own) for _, found, own in shards(training, one.gradients, gradient))
        found = update(training, number, number * batch, loss)
        reports = most([reports, *(abs(a - b) for a, b in zip(found, expected, strict=True))])
    weights = [far(shard, own) for _, shard, own in shards(training, one.weights, lambda line: line.master)]
    if training.settings.layout.zero < 3:  # else nothing is whole between steps
        whole = training.part.parameters
        weights += [far(found, piece_of(one.weights[name], found, tp)) for name, found in whole.items()]
    return Distance(reports, gradients, most(weights))


def shards(
    training: Training, wholes: Mapping[str, Tensor], pick: Callable[[FlatShard], Tensor | None]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What lies in this rank's shards of lines: name, this rank's elements, and the same of one device's `wholes`.

    `pick` says what of a line: its master, its gradient, a state of the optimizer.
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


def label(settings: Settings) -> str:
    """A layout in a few words, with its unusual settings."""
    layout, usual = settings.layout, Layout()
    words = {
        "cp_mode": layout.cp_mode,
        "schedule": layout.schedule,
        "zero": f"ZeRO-{layout.zero}",
        "sequence_parallel": "sequence-parallel",
        "recompute": f"{layout.recompute} recomputation",
    }
    unusual = [text for name, text in words.items() if getattr(layout, name) != getattr(usual, name)]
    return ", ".join(
        [str(layout), *unusual, *([f"{experts} experts"] if (experts := settings.model.sizes.experts) else [])]
    )
