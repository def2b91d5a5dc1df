"""Trains a GPT, on one device or in any layout of ranks. The loop, with every axis in it:

    python -m minitrain.train
    python -m minitrain.train --ranks 8 --dp 2 --pp 2 --tp 2
    python -m minitrain.train --resume --pp 4
    torchrun --nproc-per-node 8 -m minitrain.train --dp 2 --pp 2 --tp 2 --sequence-parallel --zero 1 --microbatches 8
    python -m minitrain.train --preset 175b --dp 16 --pp 12 --tp 8 --microbatches 96 --batch 1536 --dry-run

With one rank this is PyTorch's plain training loop, and every other layout gives the same losses. `train` has the loop,
`build` makes model and optimizer before it, and a step is `forward_backward`, then `update`. Command line, progress
bar, log, checkpoints, signals and evaluation are in `minitrain/trainer/`.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the imports: torch takes seconds to import, and only the ranks need it
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
from minitrain.composition.step import (
    Instruments,
    Report,
    Training,
    loss_and_norm,
    make_pipeline,
    step_or_skip,
    stop_if_not_finite,
)
from minitrain.data.text import Numbered
from minitrain.trainer.trainer import Trainer


def train(trainer: Trainer) -> int:
    """A whole run on this rank, from its first step or from a checkpoint; returns the exit status of the process."""
    training = build(trainer.settings, trainer.world.device, trainer.instruments)
    # Before the loop a checkpoint is loaded, if one was asked for; after it, the last one is saved.
    with trainer.run(training):
        for step in trainer.steps():
            with trainer.measured():
                report = train_step(training, step, trainer.position, trainer.samples)
            # Write a line of the log and, when they are due, evaluate on held-out text and save a checkpoint.
            trainer.log_evaluate_save(report)
    return trainer.status


def build(settings: Settings, device: torch.device, instruments: Instruments | None = None) -> Training:
    """Make this rank's part of the model, its gradients, optimizer and pipeline. Every rank passes the same settings.

    Args:
        settings: Model, layout (how many ranks along each axis), and steps (batch, learning rate, precision, …).
        device: Where this rank computes.
        instruments: The collectives of each axis, and the timer; by default torch's own, and none.

    Raises:
        ValueError: On every rank alike, if the layout does not fit the model, the batch or the number of ranks.
    """
    check(settings.model, settings.layout, settings.steps, dist.get_world_size())
    instruments = instruments or Instruments()
    # This rank's coordinates in the grid of dp · pp · cp · tp ranks, and its process group along each axis.
    axes = make_axes(settings.layout)
    part = make_part(settings, axes, device, instruments)
    # Gradients, their average over dp, and the optimizer. With ZeRO 1, 2, 3 each rank keeps only its shard of optimizer
    # states, of gradients too, of parameters too.
    gradients = Gradients(part, axes, settings.steps, instruments.collectives.dp, instruments.collectives.tp)
    training = Training(settings, device, axes, part, gradients, instruments)
    training.pipeline = make_pipeline(training)  # None where pp is 1
    return training


def make_part(settings: Settings, axes: Axes, device: torch.device, instruments: Instruments) -> model.Part:
    """Make this rank's part of the model. It is cut before it has memory, so no rank ever holds the whole model."""
    # On torch's `meta` device, where a tensor is only a shape.
    gpt = model.make_gpt(settings.model, settings.steps.seed)
    # Each of these changes the model in place, or does nothing if the layout does not ask for it. Experts come after
    # tensor parallelism, because they are cut in a way of their own.
    model.apply_tensor_parallel(gpt, axes, instruments.collectives.tp)
    model.apply_context_parallel(gpt, axes)
    model.insert_experts(gpt, settings.model, settings.layout.microbatches)
    model.cut_experts(gpt, axes, instruments.collectives.tp)
    model.apply_expert_parallel(gpt, axes, instruments.collectives.ep)
    model.apply_recomputation(gpt, settings.layout)
    # Keep this rank's pipeline stages. Only these get memory, and the initial values that they have on one device.
    part = model.cut_stages(gpt, settings.model, axes)
    model.materialize(part, settings.model, axes, settings.steps, device)
    model.apply_compile(part, settings.steps)
    return part


def train_step(training: Training, step: int, position: int, samples: Numbered) -> Report:
    """Train on the next batch.

    Args:
        training: What `build` made on this rank.
        step: The number of the step, from 0.
        position: How many samples all ranks together have taken so far; the data have no other state.
        samples: The training data, from which a sample is taken by its number.

    Raises:
        NotFinite: On all ranks, if the loss or a gradient is infinite or NaN. It names the step, ranks and samples, and
            no parameter has been changed.
    """
    loss = forward_backward(training, step, position, samples)
    return update(training, step, position, loss)


def forward_backward(training: Training, step: int, position: int, samples: Numbered) -> Tensor | None:
    """The first half of a step, after which gradients are those that one device would have for the whole batch.

    Returns:
        The mean loss of this rank's samples, []; None on ranks without the last pipeline stage.
    """
    layout, timer = training.settings.layout, training.instruments.timer
    # Ranks along dp take different samples of the batch, those along cp other tokens of them; all others take the same.
    indices = training.share(position)
    with timer("data"):
        # For each micro-batch, inputs and targets of [samples, seq/cp].
        batch = training.own_tokens(*samples.take(indices))
        inputs, targets = (each.to(training.device, non_blocking=True).chunk(layout.microbatches) for each in batch)
    # Dropout depends on the step and on a token's number in the batch, so it is the same in every layout.
    first_token = (indices.start - position) * samples.seq
    training.rng.begin_step(step, first_token)
    if training.pipeline is not None:
        with timer("pipeline"):
            loss = training.pipeline.step(inputs, targets)
    else:
        loss = torch.zeros((), device=training.device)
        for index in range(layout.microbatches):
            training.rng.begin_microbatch(index)
            # Without ZeRO or with ZeRO 1, gradients add up on this rank until the last backward or `synchronize()`
            # sends them. ZeRO 2 and 3 send in every backward, and `no_sync` tells them that another one follows.
            with nullcontext() if index == layout.microbatches - 1 else training.gradients.no_sync():
                with timer("forward"):
                    # The GPT, or the ZeRO stage around it; returns logits and the micro-batch's mean loss.
                    _, mean = training.gradients.model(inputs[index], targets[index])
                with timer("backward"):
                    # Divided, so that gradients add up to those of the mean loss; float16 needs a larger loss.
                    training.loss_scale.scaled(mean / layout.microbatches).backward()
            loss = loss + mean.detach() / layout.microbatches
    # The mean of gradients over dp and cp; with sequence parallelism also the sum over tp, where they are partial.
    with timer("gradients"):
        training.gradients.synchronize()
    return loss


def update(training: Training, step: int, position: int, loss: Tensor | None) -> Report:
    """The second half of a step: clip gradients and step the optimizer; `loss` is what `forward_backward` returned."""
    steps, timer = training.settings.steps, training.instruments.timer
    with timer("norm"):
        # One all-reduce: every rank must clip by the same norm, and stop at the same step.
        mean, norm = loss_and_norm(training, loss)
    report = Report(mean, norm, learning_rate(steps, step))
    stop_if_not_finite(training, report, step, training.share(position), loss)
    with timer("optimizer"):
        factor = min(1.0, steps.clip / (norm + 1e-6)) if steps.clip else 1.0  # as torch's clip_grad_norm_
        # The step of AdamW or SGD, and zero_grad; with ZeRO 1 and 2, an all-gather of the new parameters. In float16
        # the step is left out if a gradient has overflowed.
        return step_or_skip(training, report, factor)
