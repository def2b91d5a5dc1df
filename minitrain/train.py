"""Trains a GPT, on one device or in any layout of ranks. The loop, with every axis in it:

    python -m minitrain.train
    python -m minitrain.train --ranks 8 --dp 2 --pp 2 --tp 2
    python -m minitrain.train --resume --pp 4
    torchrun --nproc-per-node 8 -m minitrain.train --dp 2 --pp 2 --tp 2 --sequence-parallel --zero 1 --microbatches 8
    python -m minitrain.train --preset 175b --dp 16 --pp 12 --tp 8 --microbatches 8 --batch 1536 --dry-run

With one rank it is the plain loop of PyTorch, and every other layout gives the same losses. What stands around the loop
is the trainer's: command line, progress, checkpoints, signals, evaluation.
"""

from __future__ import annotations

if __name__ == "__main__":  # here, because torch, which only the ranks need, takes seconds to import
    from minitrain.trainer.command import main

    main(__spec__.name)

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.composition import model
from minitrain.composition.gradients import Gradients
from minitrain.composition.layout import Axes, make_axes
from minitrain.composition.optimizer import learning_rate
from minitrain.composition.settings import Settings, check
from minitrain.composition.step import Instruments, Report, Training, loss_and_norm, make_pipeline, stop_if_not_finite
from minitrain.data.text import Samples
from minitrain.trainer.trainer import Trainer


def train(trainer: Trainer) -> int:
    """A whole run on this rank, from its first step or from a checkpoint; returns the exit status."""
    training = build(trainer.settings, trainer.world.device, trainer.instruments)
    with trainer.run(training):
        for number in trainer.steps():
            with trainer.measured():
                report = train_step(training, number, trainer.position, trainer.samples)
            # A line of the log and, when it is time, the loss on held-out text and a checkpoint.
            trainer.after(report)
    return trainer.status


def build(settings: Settings, device: torch.device, instruments: Instruments | None = None) -> Training:
    """Make this rank's part of the model, and what trains it. Every rank calls it with the same settings.

    Args:
        settings: Model, layout and steps.
        device: Where this rank computes.
        instruments: Who carries tensors, and who watches.

    Raises:
        ValueError: On every rank alike: the layout does not fit the model, the batch or the ranks.
    """
    check(settings.model, settings.layout, settings.steps, dist.get_world_size())
    instruments = instruments or Instruments()
    # Where this rank stands in the grid, and the group of ranks along each axis.
    axes = make_axes(settings.layout)
    part = make_part(settings, axes, device, instruments)
    # Gradients are averaged over dp; with ZeRO each rank keeps its shard of states, of gradients, of parameters.
    gradients = Gradients(part, axes, settings.steps, instruments.verbs.dp, instruments.verbs.tp)
    training = Training(settings, device, axes, part, gradients, instruments)
    training.pipeline = make_pipeline(training)
    return training


def make_part(settings: Settings, axes: Axes, device: torch.device, instruments: Instruments) -> model.Part:
    """Make this rank's part of the model: cut while it has no memory, so that no rank ever holds all of it."""
    # On torch's `meta` device, where shapes are all there is.
    gpt = model.make_gpt(settings.model, settings.steps.seed)
    # Tensor parallelism, and with it sequence parallelism; experts and expert parallelism; recomputation.
    model.apply_tensor_parallel(gpt, axes, instruments.verbs.tp)
    model.put_in_experts(gpt, settings.model, settings.layout.microbatches)
    model.apply_expert_parallel(gpt, axes, instruments.verbs.ep)
    model.apply_recomputation(gpt, settings.layout)
    # Of the pipeline's stages this rank keeps its own: they get memory, and the values that they have on one device.
    part = model.cut_stages(gpt, settings.model, axes)
    model.materialize(part, settings.model, axes, settings.steps, device)
    model.apply_compile(part, settings.steps)
    return part


def train_step(training: Training, number: int, position: int, samples: Samples) -> Report:
    """Train on the next batch.

    Args:
        training: This rank's.
        number: Of the step, from 0.
        position: Samples that all ranks have taken before: the data's only state.
        samples: Where they come from.

    Raises:
        NotFinite: On all ranks, naming step, ranks and samples. No parameter has been changed.
    """
    loss = forward_backward(training, number, position, samples)
    return update(training, number, position, loss)


def forward_backward(training: Training, number: int, position: int, samples: Samples) -> Tensor | None:
    """The part of a step up to the gradients of one device.

    Returns:
        This rank's mean loss, where it has the model's end.
    """
    layout, during = training.settings.layout, training.instruments.during
    mine = training.share(position)
    with during("data"):
        inputs, targets = (part.to(training.device).chunk(layout.microbatches) for part in samples.take(mine))
    training.random.begin_step(number, (mine.start - position) * inputs[0].shape[1])
    if training.pipeline is not None:
        with during("pipeline"):
            loss = training.pipeline.step(inputs, targets)
    else:
        loss = torch.zeros((), device=training.device)
        for index in range(layout.microbatches):
            training.random.begin_microbatch(index)
            # Gradients stay here until the last micro-batch, and travel while its backward runs.
            with nullcontext() if index == layout.microbatches - 1 else training.gradients.no_sync():
                with during("forward"):
                    _, mean = training.gradients.model(inputs[index], targets[index])
                with during("backward"):
                    (mean / layout.microbatches).backward()  # one device would divide the sum by all samples, once
            loss = loss + mean.detach() / layout.microbatches
    with during("gradients"):
        training.gradients.synchronize()
    return loss


def update(training: Training, number: int, position: int, loss: Tensor | None) -> Report:
    """The rest of a step, with arguments as of `train_step`, and the loss that `forward_backward` returned."""
    steps, gradients, during = training.settings.steps, training.gradients, training.instruments.during
    with during("norm"):
        report = Report(*loss_and_norm(training, loss), learning_rate(steps, number))
    stop_if_not_finite(report, number, training.share(position), loss)
    with during("optimizer"):
        if steps.clip:
            gradients.scale(min(1.0, steps.clip / (report.norm + 1e-6)))  # as torch's clip_grad_norm_
        gradients.step(report.lr)
    return report
