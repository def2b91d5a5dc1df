"""One training step in any layout, and what one looks at between steps: held-out loss, and generated text.

**Idea.** A step has one shape, whatever was combined: backward for each micro-batch; `synchronize()`, after which
gradients are one device's; clipping by the norm of all of them; the optimizer. The pipeline's schedule takes the place
of the first part, and nothing else changes.

**Source.** Shoeybi et al. 2019 and Narayanan et al. 2021 for the combination; Pascanu et al. 2013, §3.2, for clipping.

**What each rank holds.** Its part of the model (`model.py`), gradients and optimizer states of it (`gradients.py`).

**What is sent, when and why.** What each technique sends, along its own axis. Then one all-reduce of two numbers over
all ranks, loss and squared norm: everyone must scale by the same norm, and stop at the same step if it is no number.

**Cost.** `minitrain.planning.plan` predicts all of it.

**Also called.** `train_step` (Megatron-LM, torchtitan).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from minitrain.collectives.full import native
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import receive, send
from minitrain.composition import optimizer
from minitrain.composition.gradients import Gradients
from minitrain.composition.layout import Axes, make_axes
from minitrain.composition.model import Part, make_part
from minitrain.composition.settings import Settings, check
from minitrain.data.text import Batch, Samples, share
from minitrain.mixture_of_experts import all_to_all
from minitrain.mixture_of_experts.full.expert_parallel import Carrier
from minitrain.models import counter_rng
from minitrain.models.gpt import Block
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full.actions import Action
from minitrain.pipeline_parallel.full.watches import Watch
from minitrain.tensor_parallel.full.mappings import Collectives
from minitrain.tensor_parallel.full.vocab_parallel import gather_logits

During = Callable[[str], AbstractContextManager[Any]]
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}  # bfloat16 begins in float32


class Report(NamedTuple):
    """What a step tells, the same on all ranks.

    Attributes:
        loss: Mean over the batch, in nats per token, without routers' auxiliary losses.
        norm: Of the gradient of all parameters, before clipping.
        lr: The learning rate.
    """

    loss: float
    norm: float
    lr: float


class NotFinite(ArithmeticError):
    """Loss or gradient is infinite or not a number; raised on all ranks in the same step, before the optimizer's."""


class Verbs(NamedTuple):
    """Who carries tensors along each axis; pipelines and the norm have messages and a call of their own.

    Attributes:
        dp: Gradients and parameters.
        tp: Activations, and partial gradients.
        ep: Tokens to experts and back.
    """

    dp: Collectives = native
    tp: Collectives = native
    ep: Carrier = all_to_all.native


class Training:
    """This rank's part of a training: a model, and steps.

    Args:
        settings: The same on all ranks.
        device: Where this rank computes.
        verbs: Who carries tensors; the default is torch.distributed.
        watch: Called with each of the pipeline's actions, as by `Pipeline`.
        during: Called with the name of each part of a step; what it returns spans that part. The parts are "data",
            "forward" and "backward" (of a pipeline "pipeline", which spans its actions and the waiting between them),
            "gradients", "norm" and "optimizer".

    Attributes:
        axes: The ranks.
        part: This rank's part of the model.
        gradients: Lines, optimizer and norm.

    Raises:
        ValueError: On every rank alike: the layout does not fit the model, the batch or the ranks.
    """

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        verbs: Verbs | None = None,
        watch: Watch | None = None,
        during: During | None = None,
    ):
        check(settings.model, settings.layout, settings.steps, dist.get_world_size())
        verbs = verbs or Verbs()
        self.settings, self.device = settings, device
        self.axes: Axes = make_axes(settings.layout)
        seed, dtype = settings.steps.seed, DTYPES[settings.steps.dtype]
        self.part: Part = make_part(settings.model, self.axes, seed, device, dtype, verbs.tp, verbs.ep)
        if settings.steps.compile:
            for stage in self.part.stages:
                for block in (layer for layer in stage if isinstance(layer, Block)):
                    block.compile()
        self.gradients = Gradients(self.part, self.axes, settings.steps, verbs.dp, verbs.tp)
        self._watch = watch or (lambda action: nullcontext())
        self._during = during or (lambda part: nullcontext())
        self._first = (0, 0)  # step, and number within the step of this rank's first sample
        self.pipeline = self._make_pipeline() if settings.layout.pp > 1 else None

    @property
    def last(self) -> bool:
        """Whether this rank has the model's end, and so the loss."""
        return self.part.schedule.rank_of(self.part.schedule.stages - 1) == self.axes.place["pp"]

    def close(self) -> None:
        """Give the groups of ranks back; a program that trains once need not."""
        self.axes.close()

    def _make_pipeline(self) -> Pipeline:
        def watch(action: Action) -> AbstractContextManager[Any]:
            if action.kind == "F":
                self._go_to(action.microbatch)
            return self._watch(action)

        loss = self.part.loss if self.last else None
        return Pipeline(self.part.stages, self.part.schedule, loss, self.axes.pp, self.part.ties, watch, self.device)

    def step(self, number: int, position: int, samples: Samples) -> Report:
        """Train on the next batch.

        Args:
            number: Of the step, from 0.
            position: Samples that all ranks have taken before: the data's only state.
            samples: Where they come from.

        Raises:
            NotFinite: On all ranks, naming step, ranks and samples. No parameter has been changed.
        """
        return self.update(number, position, self.backward(number, position, samples))

    def backward(self, number: int, position: int, samples: Samples) -> Tensor | None:
        """The part of a step up to the gradients of one device, with arguments as of `step`.

        Returns:
            This rank's mean loss, where it has the model's end.
        """
        mine, microbatches = self._share(position), self.settings.layout.microbatches
        self._first = (number, mine.start - position)
        with self._during("data"):
            inputs, targets = (part.to(self.device) for part in samples.take(mine))
        loss = self._accumulate(list(zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)))
        with self._during("gradients"):
            self.gradients.synchronize()
        return loss

    def update(self, number: int, position: int, loss: Tensor | None) -> Report:
        """The rest of a step, with arguments as of `step` and what `backward` returned."""
        with self._during("norm"):
            report = self._report(loss, optimizer.learning_rate(self.settings.steps, number))
        if not math.isfinite(report.loss + report.norm):
            self._stop(report, number, self._share(position), loss)
        with self._during("optimizer"):
            if clip := self.settings.steps.clip:
                self.gradients.scale(min(1.0, clip / (report.norm + 1e-6)))  # as torch's clip_grad_norm_
            self.gradients.step(report.lr)
        return report

    def _share(self, position: int) -> range:
        return share(position, self.settings.steps.batch, self.axes.place["dp"], self.settings.layout.dp)

    def _accumulate(self, micro_batches: list[Batch]) -> Tensor | None:
        """Forward and backward of all micro-batches; the mean loss on ranks that have the model's end."""
        if self.pipeline is not None:
            inputs, targets = zip(*micro_batches, strict=True)
            with self._during("pipeline"):
                return self.pipeline.step(inputs, targets)
        assert self.part.whole is not None
        total = torch.zeros((), device=self.device)
        for index, (inputs, targets) in enumerate(micro_batches):
            self._go_to(index)
            last = index == len(micro_batches) - 1
            with nullcontext() if last else self.gradients.no_sync():
                with self._during("forward"):
                    _, loss = self.gradients.model(inputs, targets)
                with self._during("backward"):
                    (loss / len(micro_batches)).backward()  # one device would divide the sum by all samples, once
            total = total + loss.detach() / len(micro_batches)
        return total

    def _go_to(self, microbatch: int) -> None:
        """Seed what draws: a place in training, the same whichever rank computes it."""
        step, first = self._first
        layout, model = self.settings.layout, self.settings.model
        size = self.settings.steps.batch // (layout.dp * layout.microbatches)
        if model.dropout or model.experts:
            sample = first + microbatch * size
            counter_rng.at(self.settings.steps.seed, step, sample * model.sizes.positions)

    def _report(self, loss: Tensor | None, lr: float) -> Report:
        # Two numbers over all ranks: the squares of what counts here, and this rank's part of the mean loss.
        numbers = torch.stack([self.gradients.squares(), self._share_of_mean(loss)])
        dist.all_reduce(numbers)
        squares, mean = numbers.tolist()
        return Report(mean, math.sqrt(squares) if squares >= 0 else math.nan, lr)

    def _share_of_mean(self, loss: Tensor | None) -> Float[Tensor, ""]:
        if loss is None or self.axes.place["tp"]:
            return torch.zeros((), dtype=torch.float64, device=self.device)  # tensor-parallel ranks have the same loss
        return loss.detach().double() / self.settings.layout.dp

    def _stop(self, report: Report, number: int, mine: range, loss: Tensor | None) -> None:
        bad = loss is not None and not math.isfinite(loss.item())
        told = gather_objects((mine.start, mine.stop - 1) if bad else None)
        where = "; ".join(f"rank {rank}, samples {found[0]} to {found[1]}" for rank, found in enumerate(told) if found)
        raise NotFinite(
            f"step {number}: loss {report.loss}, norm of the gradient {report.norm}"
            + (f"; not finite on {where}" if where else "; every loss is finite, and a gradient is not")
            + "; no parameter was changed. A lower lr, more warmup, or clipping are the usual cures"
        )

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> float:
        """The mean loss over some batches, each shared by the data-parallel ranks, which must divide it."""
        dp, place = self.settings.layout.dp, self.axes.place["dp"]
        total, count = torch.zeros((), dtype=torch.float64, device=self.device), 0
        with self._evaluating():
            for inputs, targets in batches:
                mine = inputs.chunk(dp)[place].to(self.device), targets.chunk(dp)[place].to(self.device)
                total += self._share_of_mean(self._loss(*mine))
                count += 1
        dist.all_reduce(total)  # every rank must know the mean
        return total.item() / count

    @torch.no_grad()
    def generate(self, prompt: bytes, count: int, temperature: float = 0.8) -> bytes:
        """Continue a text, byte by byte; the same on all ranks, whatever the layout.

        Every forward takes a window of full length, filled up behind with zeros, which no earlier token sees.
        """
        length = self.settings.model.sizes.positions
        generator = torch.Generator().manual_seed(self.settings.steps.seed)
        text = list(prompt)
        end = self.axes.mesh.mesh.flatten(1)[self.part.schedule.rank_of(self.part.schedule.stages - 1), 0].item()
        with self._evaluating():
            for _ in range(count):
                window = text[-length:]
                tokens = torch.tensor([window + [0] * (length - len(window))], device=self.device)
                logits = self._logits(tokens)
                drawn = torch.zeros(1, dtype=torch.int64, device=self.device)
                if logits is not None:
                    row = logits[0, len(window) - 1, :256].float().cpu() / temperature
                    drawn[0] = int(torch.multinomial(row.softmax(-1), 1, generator=generator))
                dist.broadcast(drawn, int(end))  # the first rank that has the model's end has drawn for all
                text.append(int(drawn))
        return bytes(text[len(prompt) :])

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """The mean loss without gradients, on ranks that have the model's end."""
        if self.pipeline is None:
            return self.gradients.model(inputs, targets)[1]
        outputs = self._through_stages(inputs)
        return None if outputs is None else self.part.loss(outputs, targets)

    def _logits(self, tokens: Int[Tensor, "batch seq"]) -> Tensor | None:
        """The logits over the whole vocabulary, on ranks that have the model's end."""
        if self.pipeline is None:
            return self.gradients.model(tokens)[0]
        outputs = self._through_stages(tokens)
        if outputs is None or self.settings.layout.tp == 1:
            return outputs
        return gather_logits(outputs, self.settings.model.sizes.vocabulary, self.axes.tp)

    def _through_stages(self, tokens: Int[Tensor, "batch seq"]) -> Tensor | None:
        """Forward only: each stage takes what the one before sends; what the last gives, on its rank."""
        schedule, place, group = self.part.schedule, self.axes.place["pp"], self.axes.pp
        sizes, layout, x = self.settings.model.sizes, self.settings.layout, tokens
        seq = tokens.shape[1] // (layout.tp if layout.sequence_parallel else 1)
        dtype = torch.bfloat16 if self.settings.steps.dtype == "bfloat16" else DTYPES[self.settings.steps.dtype]
        for number, stage in zip(schedule.stages_of(place), self.part.stages, strict=True):
            if number and (before := schedule.rank_of(number - 1)) != place:
                x = torch.empty(tokens.shape[0], seq, sizes.hidden, dtype=dtype, device=self.device)
                receive(x, before, group).wait()  # the activations that the stage before has made
            x = stage(x)
            if number + 1 < schedule.stages and (after := schedule.rank_of(number + 1)) != place:
                send(x.contiguous(), after, group).wait()  # and on to the next
        return x if self.last else None

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Without dropout and routers' noise."""
        for stage in self.part.stages:
            stage.eval()
        try:
            yield
        finally:
            for stage in self.part.stages:
                stage.train()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
