"""The parts of one training step in any layout: collectives, random numbers, the loss and norm over all ranks.

**Idea.** A step has the same form, whatever is combined: backward for each micro-batch; `synchronize()`, after which
gradients are one device's; clipping by the norm of all of them; the optimizer. A pipeline's schedule replaces the first
part, and nothing else changes. `minitrain/train.py` shows it.

**Source.** Shoeybi et al. 2019 and Narayanan et al. 2021 for the combination; Pascanu et al. 2013, §3.2, for clipping.
**Sent.** What each technique sends along its own axis, and one all-reduce of two numbers over all ranks (with
ordered sums, of the norm and each micro-batch's loss).
**Waits for the GPU** once per step, to read these two numbers; a mixture of experts waits separately.
`minitrain.planning.plan` predicts all of it. Also called `train_step` (Megatron-LM, torchtitan).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from minitrain.comm import native
from minitrain.comm.comm import Collectives, Comm
from minitrain.comm.control import gather_objects
from minitrain.composition.gradients import Gradients
from minitrain.composition.layout import Axes
from minitrain.composition.model import Part
from minitrain.composition.ordered_sums import Losses, in_order
from minitrain.composition.settings import Settings
from minitrain.context_parallel.full.batches import take
from minitrain.data.text import share
from minitrain.mixture_of_experts import all_to_all
from minitrain.mixture_of_experts.full.expert_parallel import Carrier
from minitrain.models import counter_rng
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full.action_observers import Watch
from minitrain.pipeline_parallel.full.actions import Action
from minitrain.precision.loss_scaling import LossScale

Timer = Callable[[str], AbstractContextManager[Any]]


class Report(NamedTuple):
    """The results of a step, the same on all ranks.

    Attributes:
        loss: Mean over the batch, in nats per token, without routers' auxiliary losses.
        norm: Of the gradient of all parameters, before clipping.
        scale: What the loss was multiplied by before backward; 1 but in float16.
        skipped: Whether no parameter was changed: a gradient overflowed in float16, or the step was a spike.
    """

    loss: float
    norm: float
    lr: float
    scale: float = 1.0
    skipped: bool = False
    spike: bool = False


class NotFinite(ArithmeticError):
    """Loss or gradient is infinite or not a number; raised on all ranks in the same step, before the optimizer's."""


class AxisCollectives(NamedTuple):
    """The collectives of each axis. Pipeline and context parallelism send messages of their own."""

    dp: Collectives = native  # gradients and parameters
    tp: Collectives = native  # activations, and partial gradients
    ep: Carrier = all_to_all.native  # tokens to experts and back


class Instruments(NamedTuple):
    """The instruments of a training: collectives that may be counted or timed, a timer, a watch on the pipeline.

    Attributes:
        collectives: Of each axis; the default is torch.distributed.
        timer: `with timer("forward"):` is around each part of a step. The parts are "data", "forward" and "backward"
            (of a pipeline "pipeline", around its actions and the waiting between them), "gradients", "norm" and
            "optimizer".
        watch: Called with each of the pipeline's actions, as by `Pipeline`.
    """

    collectives: AxisCollectives = AxisCollectives()
    timer: Timer = lambda part: nullcontext()  # measures nothing
    watch: Watch | None = None


class CounterRng:
    """Sets the counters that dropout and routers' noise are drawn from: seed, step, and a token's number in the batch.

    Tokens are counted through whole sequences, also where a rank has only some of them. Therefore both are the same in
    every layout, whichever rank computes a micro-batch.
    """

    def __init__(self, settings: Settings):
        layout, model, steps = settings.layout, settings.model, settings.steps
        self.seed, self.draws = steps.seed, bool(model.dropout or model.sizes.experts)
        self.tokens = steps.batch // (layout.dp * layout.microbatches) * model.sizes.positions  # of a micro-batch
        self.step = self.first = 0

    def begin_step(self, step: int, first_token: int) -> None:
        """The step, and the number within it of the first token of this rank's share."""
        self.step, self.first = step, first_token

    def begin_microbatch(self, number: int) -> None:
        """Before the forward of each of this rank's micro-batches."""
        if self.draws:
            counter_rng.set_position(self.seed, self.step, self.first + number * self.tokens)


@dataclass
class Training:
    """The training that `minitrain.train.build` has made on this rank.

    Attributes:
        rng: The counters that dropout and routers' noise are drawn from.
        loss_scale: What the loss is multiplied by before backward; it stays 1 but in float16.
        pipeline: Runs the stages, if there are several.
        losses: With ordered sums, those of this rank's micro-batches one by one.
        inspect: Called on all ranks with a step's results when all gradients are there, before the optimizer's step; if
            it returns True, also on all ranks, the step is a spike, and its update is left out.
    """

    settings: Settings
    device: torch.device
    axes: Axes
    part: Part
    gradients: Gradients
    instruments: Instruments
    pipeline: Pipeline | None = None
    inspect: Callable[[Report], bool] | None = None

    def __post_init__(self) -> None:
        steps, layout = self.settings.steps, self.settings.layout
        self.rng = CounterRng(self.settings)
        # Elsewhere it stays 1: other dtypes have float32's range.
        self.loss_scale = LossScale(steps.loss_scale) if steps.dtype == "float16" else LossScale(1.0, every=0)
        self.losses: Losses | None = None
        if steps.ordered_sums:
            sharers = Comm(self.axes.dp, check=False)
            self.losses = Losses(self.gradients.model, layout.microbatches, sharers, self.loss_scale)

    @property
    def last(self) -> bool:
        """Whether this rank has the model's end, and so the loss."""
        return self.part.schedule.rank_of(self.part.schedule.stages - 1) == self.axes.place["pp"]

    def close(self) -> None:
        """Give the groups of ranks back; a program that trains only once need not."""
        self.axes.close()

    def share(self, position: int) -> range:
        """The samples of the next batch that this rank takes, where all ranks have taken `position` before.

        Ranks along dp divide the batch, all others take the same.
        """
        # By numbers of samples, so that every layout takes the same batch.
        return share(position, self.settings.steps.batch, self.axes.place["dp"], self.settings.layout.dp)

    def own_tokens(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's tokens of each sequence, from [samples, seq] to [samples, seq/cp]: ranks along cp divide it.

        Each token comes with its target, so at the end of a chunk the target is the first token of another rank.
        """
        layout = self.settings.layout
        if layout.cp == 1:
            return inputs, targets
        own = take(inputs, targets, layout.cp_mode, Comm(self.axes.cp, check=False))
        # The cut is a copy in memory of its own, from which a GPU would copy only while the CPU waits.
        return (own[0].pin_memory(), own[1].pin_memory()) if inputs.is_pinned() else own

    def share_of_mean(self, loss: Tensor | None) -> Float[Tensor, ""]:
        """This rank's part of the mean loss over all ranks; `loss` is its own, None without the model's end."""
        if loss is None or self.axes.place["tp"]:
            return torch.zeros((), dtype=torch.float64, device=self.device)  # tensor-parallel ranks have the same loss
        return loss.detach().double() / (self.settings.layout.dp * self.settings.layout.cp)


def make_pipeline(training: Training) -> Pipeline | None:
    """The pipeline that runs this rank's stages in the order of the schedule; None where there is one stage."""
    part, watch = training.part, training.instruments.watch
    if training.settings.layout.pp == 1:
        return None

    def watched(action: Action) -> AbstractContextManager[Any]:
        # Not before backward: recomputation restores the position of the forward that it repeats.
        if action.kind == "F":
            training.rng.begin_microbatch(action.microbatch)
        return watch(action) if watch else nullcontext()

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        assert part.loss is not None
        mean = part.loss(outputs, targets)
        mean.register_hook(training.loss_scale.scaled)  # the gradient with which backward begins
        return mean

    ends = loss if training.last else None
    return Pipeline(part.stages, part.schedule, ends, training.axes.pp, part.ties, watched, training.device)


def loss_and_norm(training: Training, loss: Tensor | None) -> tuple[float, float]:
    """The mean loss over the batch, and the norm of the gradient of all parameters, which is synchronized.

    `loss` is this rank's mean loss, where it has the model's end.
    """
    # Two numbers over all ranks: the squares of what counts here, and this rank's part of the mean loss. Everyone must
    # scale by the same norm, and stop at the same step if it is not a number.
    parts, dtype = training.share_of_mean(loss).reshape(1), torch.float64
    if training.losses:
        parts, dtype = training.losses.take()  # a part for each micro-batch, to be added in order
    numbers = torch.cat([training.gradients.squares().reshape(1), parts])
    dist.all_reduce(numbers)
    # The step's one wait for the GPU.
    numbers = numbers.cpu()
    squares, mean = numbers[0].item(), in_order(numbers[1:].to(dtype)).item()
    # Gradients still have the loss scale in them, by which no norm may be clipped.
    return mean, math.sqrt(squares) / training.loss_scale.scale if squares >= 0 else math.nan


def step_or_skip(training: Training, report: Report, factor: float) -> Report:
    """Step the optimizer with gradients that are scaled by `factor`; not if one has overflowed float16, or at a spike.

    All ranks have the same norm, so all step or none does, without a message of its own.
    """
    scale = training.loss_scale
    if training.inspect is not None and training.inspect(report):
        training.gradients.forget()
        return report._replace(scale=scale.scale, skipped=True, spike=True)
    scale.overflow = not math.isfinite(report.norm)
    if scale.overflow:
        training.gradients.forget()
    else:
        training.gradients.step(report.lr, factor / scale.scale)
    # The scale of this step, before `update` changes it for the next.
    report = report._replace(scale=scale.scale, skipped=scale.overflow)
    scale.update()
    return report


def stop_if_not_finite(training: Training, report: Report, number: int, mine: range, loss: Tensor | None) -> None:
    """End the training on all ranks if loss or norm is not finite, and report where it came from.

    In float16 a gradient may overflow, until the loss is not scaled any more. `number` is the step's, `mine` are the
    numbers of this rank's samples, and `loss` is its own.

    Raises:
        NotFinite: On all ranks, naming step, ranks and samples.
    """
    if math.isfinite(report.loss + report.norm):
        return
    if math.isfinite(report.loss) and training.loss_scale.scale > training.loss_scale.least:
        return
    if training.settings.steps.on_spike:
        return  # it is one
    bad = loss is not None and not math.isfinite(loss.item())
    # All ranks have the same report, so all come here.
    told = gather_objects(((mine.start, mine.stop - 1) if bad else None, training.gradients.not_finite()))
    where = "; ".join(f"rank {rank}, samples {had[0]} to {had[1]}" for rank, (had, _) in enumerate(told) if had)
    names = list(dict.fromkeys(name for _, found in told for name in found))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    gradient = f"every loss is finite, but not the gradient of {', '.join(names[:3])}{more}"
    float16 = training.settings.steps.dtype == "float16"
    scale = f", with a loss scale of {training.loss_scale.scale:g}" if float16 else ""
    raise NotFinite(
        f"step {number}: loss {report.loss}, norm of the gradient {report.norm}; "
        f"{f'not finite on {where}' if where else gradient}{scale}; no parameter was changed. "
        "A lower lr, more warmup, or clipping are the usual cures"
    )


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
