"""`minitrain.pipeline_parallel.gpipe` and `.one_f_one_b` for any schedule and any split of any model, with checks.

**Idea.** A schedule already says what each rank does and in which order. So the executor has no plan of its own: for
each action it waits for its inputs, runs it, and sends its result. Several tensors of any shape can pass between
stages; a rank may have several stages, tied weights, and data parallelism within a stage.

**Source.** Huang et al. 2019, "GPipe", §2.2, for the step; the schedules name their own.
**Sent.** After F the outputs, to the next stage; after B or I the gradient of the inputs, to the stage before. Then the
copies of a tied weight send each other their gradients. In which order: `minitrain.pipeline_parallel.full.nccl_order`.
**Cost.** `minitrain.costs.pipeline`: bubbles, micro-batches in flight, and `sent`, the bytes: with many micro-batches
about as many as the gradients', but only neighbors exchange them.
Also called pipeline engine (DeepSpeed), `forward_backward_func` (Megatron-LM), `PipelineStage` (torch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from minitrain.comm.clip_grad_norm import Piece, axis, clip_through, pieces
from minitrain.comm.comm import Comm
from minitrain.pipeline_parallel.full import checks, tied
from minitrain.pipeline_parallel.full.actions import Action, Schedule, Watch
from minitrain.pipeline_parallel.full.mail import Mail
from minitrain.pipeline_parallel.full.shapes import metas
from minitrain.pipeline_parallel.weight_gradients import SplitBackward, Task, finish

MicroBatch = Tensor | tuple[Tensor, ...]


class Pipeline:
    """This rank's part of a pipeline: its stages, and a `step` that does its part of the schedule.

    A step adds to `.grad` what one device would add if it took the same micro-batches one after another. Then come
    `clip_grad_norm(pipeline, 1.0)` of `minitrain.comm.clip_grad_norm`, by one norm over all stages; `optimizer.step()`
    and `zero_grad()`. A stage that is data-parallel too (it has `no_sync` and `synchronize`) accumulates under
    `no_sync()`, and the step ends with its `synchronize()`.

    Args:
        stages: The stages of this rank, as `schedule.stages_of(rank)` numbers them: modules that take the outputs of
            the stage before as arguments, and return a tensor or a tuple of tensors.
        schedule: The actions of each rank; the same on all.
        loss: On the rank of the last stage: `loss(outputs, target)`, the mean over a micro-batch. `outputs` is what the
            last stage returns.
        group: The ranks of the pipeline; None means everyone.
        ties: The parameters that several stages hold, from `tied.ties`. All copies must start equal.
        watch: Called with each action; its result, a context manager, is entered when all inputs of the action have
            arrived, and left before its result is sent. For timelines, and for the virtual clock.
        device: Where this rank computes; None: where its parameters are.

    Attributes:
        held: (stage, micro-batch) -> of each graph that is alive: its inputs, and the edges where its backward begins.
        put_off: (stage, micro-batch) -> products that I leaves for W, as inputs and output gradients of linear layers;
            from F on, and only where backward is split.

    Raises:
        ValueError: On every rank alike: the schedule is not valid, differs between ranks, or is for another number of
            ranks; the number of stages is wrong; the last stage's rank has no loss; copies of a tied parameter differ.

    Examples:
        >>> from minitrain.pipeline_parallel import SCHEDULES, Pipeline, split, ties
        >>> layers = nn.Sequential(model.embedding, *model.blocks, model.norm, model.head)
        >>> stages = split(layers, [2, 1, 1, 3])
        >>> pipeline = Pipeline([stages[rank]], SCHEDULES["1f1b"](ranks, 2), cross_entropy, ties=ties(stages))
        >>> loss = pipeline.step(tokens.chunk(2), targets.chunk(2))
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        schedule: Schedule,
        loss: Callable[[Any, Any], Float[Tensor, ""]] | None = None,
        group: dist.ProcessGroup | None = None,
        ties: Sequence[tied.Tie] = (),
        watch: Watch | None = None,
        device: torch.device | str | None = None,
    ):
        self.schedule, self.loss, self.group, self.ties = schedule, loss, group, tuple(ties)
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ValueError(f"group: this rank ({dist.get_rank()}) is not in it; only its members may make a Pipeline")
        checks.agree(schedule, len(stages), loss is not None, group)
        self.stages = dict(zip(schedule.stages_of(self.rank), stages, strict=True))
        self._parallel: list[Any] = [stage for stage in stages if checks.is_data_parallel(stage)]
        self._inner: dict[int, Any] = {
            number: stage.module if checks.is_data_parallel(stage) else stage for number, stage in self.stages.items()
        }
        tied.check_equal(self.ties, self._inner, group)
        self.held: dict[tuple[int, int], tuple[tuple[Tensor, ...], tuple[GradientEdge, ...]]] = {}
        self.put_off: dict[tuple[int, int], list[Task]] = {}
        self._last = schedule.stages - 1
        self._actions = schedule.actions[self.rank]
        self._watch = watch or (lambda action: nullcontext())
        in_two_parts = any(action.kind == "I" for action in self._actions)
        self._split = {number: SplitBackward(stage) for number, stage in self.stages.items()} if in_two_parts else {}
        parameters = [parameter for stage in stages for parameter in stage.parameters()]
        place = torch.device(device or (parameters[0].device if parameters else "cpu"))
        self._mail, self._place = Mail(schedule, self.rank, group, place), place
        clip_through(self, parameters)

    def step(
        self,
        inputs: Sequence[MicroBatch] | None = None,
        targets: Sequence[Any] | None = None,
        shares: Sequence[float] | None = None,
    ) -> Float[Tensor, ""] | None:
        """One training step up to the gradients: every action of this rank, then sums over copies of weights.

        Args:
            inputs: The micro-batches, on the rank of the first stage; other ranks may leave them out. Inputs of equal
                shape must have outputs of equal shape in every stage.
            targets: What `loss` compares with, one for each micro-batch, on the rank of the last stage.
            shares: On the rank of the last stage, the weight of each micro-batch's mean in that of the step, where
                sizes differ: its part of all samples or tokens. None: 1/m.

        Returns:
            The mean loss on the rank of the last stage, None on others.

        Raises:
            ValueError: There are not as many inputs, targets or shares as micro-batches; or in the middle of the step:
                two stages do not meet, or one returns no tensor.
        """
        self._begin(inputs, targets, shares)
        aside = tied.set_aside(self.ties, self._inner)
        with ExitStack() as stack:
            for stage in self._parallel:
                stack.enter_context(stage.no_sync())  # gradients of all micro-batches leave together, below
            for action in self._actions:
                self._take(action)
        self._mail.end()
        # Before data parallelism averages: each copy of a tied weight has only its own stage's gradient so far.
        tied.sum_gradients(self.ties, self._inner, aside, self.schedule, self.group)
        for stage in self._parallel:
            stage.synchronize()
        return self._mean

    def gradient_pieces(self) -> Iterator[Piece]:
        """What this rank has of each gradient after a step; of a tied weight's copies the first stage's counts."""
        comm, first = Comm(self.group, check=False), dict[int, bool]()
        for tie in self.ties:
            for stage, name in zip(*tie, strict=True):
                if stage in self._inner:
                    first.setdefault(id(self._inner[stage].get_parameter(name)), stage == tie.stages[0])
        yield Piece(torch.empty(0, device=self._place), None, axis(comm))  # it takes part, even without parameters
        for _, stage in sorted(self.stages.items()):
            for piece in pieces(stage):
                yield piece._replace(axes=piece.axes | axis(comm, first.get(id(piece.parameter), True)))

    def _begin(
        self,
        inputs: Sequence[MicroBatch] | None,
        targets: Sequence[Any] | None,
        shares: Sequence[float] | None,
    ) -> None:
        first, last = 0 in self.stages, self._last in self.stages
        wanted = {
            "inputs": (inputs, first),
            "targets": (targets, last),
            "shares": (shares, last and shares is not None),
        }
        checks.lengths(self.schedule.microbatches, self.group, **wanted)
        self._inputs = [checks.inputs_of(number, given) for number, given in enumerate(inputs or ()) if first]
        self._targets, self._shares = targets, shares
        self._mean: Tensor | None = None
        self._here: dict[Action, list[Tensor]] = {}  # results that stay on this rank, by the action that made them
        self._mail.begin(checks.kinds(self._inputs) if first else None)
        self.held.clear()
        self.put_off.clear()

    def _take(self, action: Action) -> None:
        arrived = self._mail.receive_for(action)  # waits for the rank that makes it
        if arrived is None:
            arrived = self._from_here(action)
        with self._watch(action):
            made = self._do(action, arrived)
        self._hand_on(action, made)

    def _from_here(self, action: Action) -> list[Tensor]:
        """What `action` needs and this rank has: inputs of the step, or what a neighboring stage of its own made."""
        if action.stage == 0 and action.kind == "F":
            return list(self._inputs[action.microbatch])
        if action.kind == "W":
            return []  # what it needs is in `put_off`
        return next((self._here.pop(need) for need in self.schedule.needs(action) if need in self._here), [])

    def _hand_on(self, action: Action, made: Sequence[Tensor]) -> None:
        stage, kind, _ = action
        following = stage + 1 if kind == "F" else stage - 1
        if kind == "W" or not 0 <= following <= self._last:
            return  # no rank waits for it
        if following in self.stages:
            self._here[action] = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in made]
        else:
            self._mail.send_for(action, made)

    def _do(self, action: Action, arrived: Sequence[Tensor]) -> Sequence[Tensor]:
        place = (action.stage, action.microbatch)
        if action.kind == "F":
            return self._forward(*place, tuple(arrived))
        if action.kind == "W":
            finish(self.put_off.pop(place))
            return ()
        return self._backward(*place, arrived)

    def _forward(self, stage: int, microbatch: int, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with self._putting_off(stage, microbatch):
            try:
                result = self.stages[stage](*inputs)
            except Exception as error:
                self._explain(error, stage, microbatch, inputs)
                raise
            if stage == self._last:
                outputs = (self._scaled_loss(result, microbatch),)
            else:
                outputs = checks.outputs_of(stage, microbatch, result)
                self._mail.shapes.expect_gradients(stage, microbatch, outputs)
        # Backward needs the outputs' places in the graph, and not their elements: so these are released as soon as they
        # have arrived at the next stage (Megatron-LM's `deallocate_pipeline_outputs`), unless autograd saved them.
        edges = tuple(get_gradient_edge(output) for output in outputs if output.requires_grad)
        self.held[stage, microbatch] = inputs, edges
        return outputs

    def _backward(self, stage: int, microbatch: int, gradients: Sequence[Tensor]) -> list[Tensor]:
        inputs, edges = self.held.pop((stage, microbatch))
        if edges:
            with self._putting_off(stage, microbatch):
                torch.autograd.backward(edges, list(gradients) or None)
        if stage == 0:
            return []
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        # The stage before waits for the gradient of everything that can have one, so not of tokens or masks.
        return [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in wanted]

    def _scaled_loss(self, outputs: Any, microbatch: int) -> Float[Tensor, ""]:
        """The part of a micro-batch in the mean over the step, from which backward begins.

        The loss of a micro-batch is a mean over fewer samples. **One device would divide by all of them, so each loss
        is divided by m, or given its share, before backward.** If that is forgotten, the gradients are m times too
        large, which is hardly visible with Adam.
        """
        assert self.loss is not None and self._targets is not None
        loss = self.loss(outputs, self._targets[microbatch])
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            shown = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"loss returned {shown} for micro-batch {microbatch}; return a tensor without dimensions")
        # Divided, since one device would write loss / m: the same bits even if m is not a power of two.
        part = loss / self.schedule.microbatches if self._shares is None else loss * self._shares[microbatch]
        self._mean = part.detach() if self._mean is None else self._mean + part.detach()
        return part

    def _putting_off(self, stage: int, microbatch: int) -> AbstractContextManager[Any]:
        # No W follows an unsplit backward to finish what it would put off; a rank may have both kinds.
        if stage not in self._split or self.schedule.backward(stage, microbatch).kind == "B":
            return nullcontext()
        return self._split[stage].into(self.put_off.setdefault((stage, microbatch), []))

    def _explain(self, error: Exception, stage: int, microbatch: int, inputs: tuple[Tensor, ...]) -> None:
        """Report where a stage's forward failed; on its first micro-batch, that two stages do not fit together."""
        shapes = ", ".join(map(str, metas(inputs)))
        if (
            stage == 0
            or isinstance(error, torch.OutOfMemoryError)
            or not self._mail.shapes.first_of_its_kind(microbatch)
        ):
            error.add_note(f"in the forward of stage {stage}, micro-batch {microbatch}: {shapes}")
            return
        ranks = [self.schedule.rank_of(number) for number in (stage - 1, stage)]
        raise ValueError(
            f"stages {stage - 1} (rank {ranks[0]}) and {stage} (rank {ranks[1]}) do not meet: stage {stage} fails on "
            f"what comes over the boundary {stage - 1}|{stage}, {shapes}: {type(error).__name__}: {error}"
        ) from error


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
