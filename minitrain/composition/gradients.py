"""From the gradients that backward leaves on each rank to those of one device, their norm, and the optimizer's step.

**Idea.** A rank's parameters lie in lines (chapter 04), and every stage of ZeRO leaves each rank with a shard of a
line's mean gradient; in stage 0 the shard is the whole line. So the rest is the same for every layout. Context-parallel
ranks have the same weights and other tokens, as data-parallel ranks do; so gradients are averaged over both at once.

**Source.** Shoeybi et al. 2019 for the norm over model-parallel ranks; Korthikanti et al. 2022, §4.2.2, for the sum
over sequence shards; Rajbhandari et al. 2020 for lines and shards.
**Sent.** `synchronize()`, or the last backward before it: for each line an all-reduce (stage 0) or a reduce-scatter,
over dp · cp, of experts over their replicas. `synchronize()`: the messages of `ordered_sums`, and with sequence
parallelism one all-reduce of partial gradients over tp. `step()`: with ZeRO an all-gather;
with balanced biases an all-reduce of the load of experts.
**Cost.** `minitrain.costs.zero.step_traffic` and `minitrain.costs.composition`.
Also called `finalize_model_grads` and `clip_grad_norm` with `param_is_not_shared` (Megatron-LM).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from minitrain.comm import native
from minitrain.comm.clip_grad_norm import sum_of_squares
from minitrain.comm.comm import Collectives, Comm
from minitrain.comm.messages import Handle
from minitrain.composition import optimizer
from minitrain.composition.layout import Axes, spread_of
from minitrain.composition.model import HALVES, Part
from minitrain.composition.ordered_sums import OrderedSums
from minitrain.composition.settings import Steps
from minitrain.mixture_of_experts.full import bias_balanced
from minitrain.tensor_parallel.full.parameter_layout import sum_partial
from minitrain.zero.full.flat_shards import FlatShard
from minitrain.zero.full.sharded import Sharded
from minitrain.zero.full.stage1 import Zero1
from minitrain.zero.full.stage2 import Zero2
from minitrain.zero.full.stage3 import Zero3

TOGETHER = 25 * 2**20 // 4  # elements of layers that travel together: 25 MB in float32, as a bucket of torch's DDP


class Replicated(Zero1):
    """Stage 0 in the form of the other stages: each rank steps all of every line, so nothing is sent after the step.

    `sharers` are the ranks that share the batch, `alone` is this rank; the rest is as for `Sharded`.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        sharers: Comm,
        alone: Comm,
        **options: Any,
    ):
        super().__init__(module, optimizer_class, alone, **options)
        self.sharers = sharers.unchecked

    def _average(self, flat: Tensor) -> Handle:
        if self.sharers.ranks == 1:
            return Handle((), flat)
        # Before the sum, as in ZeRO: low precision then cannot overflow.
        flat.mul_(1 / self.sharers.ranks)
        # Every rank brings its gradient of the whole line, and all get the mean.
        return self.sharers.all_reduce(flat)

    def _all_gather_parameters(self) -> None:
        """Nothing: every rank has stepped all of every line."""


class Gradients:
    """The work of a rank between the last backward of a step and the next forward.

    Args:
        part: This rank's part of the model. It is changed: parameters become views of lines.
        collectives: The collectives for gradients and parameters along dp and cp.
        tensor_collectives: The collectives for partial gradients along tp.

    Attributes:
        shards: The lines: of all parameters but experts', and of experts.
        routers: Those with a bias, which is a state as the optimizer's are, by name.
        spread: How each parameter is laid out over the ranks, by name.
        model: The module to call if there is no pipeline: the GPT, or the stage of ZeRO around it.
    """

    def __init__(
        self,
        part: Part,
        axes: Axes,
        steps: Steps,
        collectives: Collectives = native,
        tensor_collectives: Collectives = native,
    ):
        self.axes, self._tp = axes, Comm(axes.tp, tensor_collectives, False)
        of_experts = part.experts
        self.spread = {
            name: spread_of(name, parameter, axes, name in of_experts, part.holders(name))
            for name, parameter in part.parameters.items()
        }
        self.parameters = part.parameters
        self.routers, self._sharers = part.routers, Comm(axes.dp_cp, collectives, False)
        self._names = {parameter: name for name, parameter in part.parameters.items()}
        self.shards: list[Sharded] = []
        self.model: Any = part.whole
        # ZeRO-2 and 3 act while forward and backward run, so they take the model itself; it has no experts.
        if axes.layout.zero >= 2:
            assert part.whole is not None
            stage = Zero2 if axes.layout.zero == 2 else Zero3
            self.model = self._wrap(stage, part.whole, part.parameters, Comm(axes.dp_cp, collectives), steps)
            self.shards.append(self.model)
        else:
            shared = {name: p for name, p in part.parameters.items() if name not in of_experts}
            experts = {name: p for name, p in part.parameters.items() if name in of_experts}
            # Experts have lines of their own, since they have replicas of their own.
            for named, group in ((shared, axes.dp_cp), (experts, axes.replicas)):
                if named:
                    self.shards.append(self._wrap(Zero1, _Bag.by_layer(named), named, Comm(group, collectives), steps))

    def _wrap(
        self, stage: type[Sharded], module: nn.Module, named: dict[str, nn.Parameter], comm: Comm, steps: Steps
    ) -> Sharded:
        options = optimizer.options(steps) | {"parameter_groups": optimizer.groups(named, steps)}
        if steps.dtype in HALVES:
            options["compute_dtype"] = HALVES[steps.dtype]  # and the optimizer steps copies in float32
        if steps.reduce_dtype != "same":
            options["reduce_dtype"] = getattr(torch, steps.reduce_dtype)
        kind, layout = optimizer.OPTIMIZERS[steps.optimizer], self.axes.layout
        alone = Comm(self.axes.alone, comm.collectives)
        if steps.ordered_sums:
            return OrderedSums(module, kind, comm, comm if layout.zero else alone, layout.microbatches, **options)
        if layout.zero == 0:
            return Replicated(module, kind, comm, alone, **options)
        return stage(module, kind, comm, **options)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """The backward of one micro-batch that is not the last of its step."""
        with ExitStack() as stack:
            for shard in self.shards:
                stack.enter_context(shard.no_sync())
            yield

    def synchronize(self) -> None:
        """Make this rank's shards those of the gradient that one device has."""
        for shard in self.shards:
            shard.synchronize()
        # After ZeRO's reduce-scatter, so that partial sums are sent of this rank's shards only.
        self._divide_experts()
        self._sum_partial()

    @torch.no_grad()
    def _divide_experts(self) -> None:
        # An expert's replicas have averaged over r = dp/ep ranks, but its tokens come from all dp.
        for line, names in self.lines():
            if any("experts" in self.spread[name].cut for name in names):
                gradient(line).mul_(1 / self.axes.layout.ep)

    @torch.no_grad()
    def _sum_partial(self) -> None:
        pieces = self.gradient_pieces()
        pairs = [(self.parameters[name], piece) for name, piece in pieces if "tp" in self.spread[name].summed]
        # The one all-reduce over tensor-parallel ranks: each has applied these parameters to its own tokens or heads.
        sum_partial(pairs, self._tp)

    @torch.no_grad()
    def squares(self) -> Float64[Tensor, ""]:
        """The sum of squares of those elements of the gradient that count on this rank: over all ranks, each once.

        The step adds them up over all ranks, together with the loss.
        """
        if isinstance(self.shards[0], OrderedSums):
            return self.shards[0].squares  # of whole parameters: shards end elsewhere for each number of ranks
        counted = [piece for name, piece in self.gradient_pieces() if self.spread[name].first]
        return sum_of_squares(counted, self.device)

    @torch.no_grad()
    def step(self, lr: float, factor: float = 1.0) -> None:
        """Step the optimizers, share the new parameters, and forget the gradients.

        Gradients are multiplied by `factor` first, in the precision of what is stepped.
        """
        for line, _ in self.lines():
            assert line.master is not None
            # In the master's precision, since the factor divides out float16's loss scale, too.
            line.gradient = gradient(line).to(line.master.dtype).mul_(factor)
        for shard in self.shards:
            for group in shard.optimizer.param_groups:
                group["lr"] = lr
            shard.step()
        # Only now: a step that is left out changes no bias either.
        bias_balanced.update([*self.routers.values()], self._sharers)
        self.forget()

    def overlap(self, part: Part) -> None:
        """Let messages travel under the computations of a step, where they need not be waited for at once.

        Without ZeRO and with ZeRO-1, gradients then leave during the last micro-batch's backward. With ZeRO-1 and 2,
        new parameters travel during the next forward; before they are read in another way, `wait()` has to be called.
        """
        first, layers = self.shards[0], [layer for stage in part.stages for layer in stage]
        # Not with experts: ranks would start two groups' messages in orders of their own, and could wait forever.
        if isinstance(first, Zero1) and not isinstance(first, OrderedSums) and len(self.shards) == 1:
            # A tied weight's gradient is not complete before the other stage's copy has been added.
            copies = [parameter for name, parameter in part.parameters.items() if part.holders(name)]
            first.send_in_backward(self.axes.layout.microbatches, copies)
        if self.axes.layout.zero in (1, 2):
            for shard in self.shards:
                # The others have no parameter in these lines, and nothing to wait for.
                own = {id(parameter) for parameter in shard.module.parameters()}
                shard.gather_in_forward(layer for layer in layers if any(id(p) in own for p in layer.parameters()))

    def wait(self) -> None:
        for shard in self.shards:
            shard.wait()

    def forget(self) -> None:
        """Leave out a step: the next one begins with gradients, and loads of experts, of 0."""
        for shard in self.shards:
            shard.zero_grad()
        for router in self.routers.values():
            router.forget()

    def not_finite(self) -> list[str]:
        """Names of the parameters with an infinite gradient or NaN in this rank's shards."""
        pieces = self.gradient_pieces()
        # Each name once, in the model's order.
        return list(dict.fromkeys(name for name, piece in pieces if not bool(piece.isfinite().all())))

    def lines(self) -> Iterator[tuple[FlatShard, list[str]]]:
        """All trainable lines, with the names on one device of the parameters in them."""
        for shard in self.shards:
            for line in shard.lines:
                if line.trainable:
                    yield line, [self._names[parameter] for parameter in line.parameters.values()]

    def gradient_pieces(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's gradients as views of its shards: name, and the elements that are in them."""
        for line, _ in self.lines():
            for name, start, stop, offset in line.partition.segments(line.rank):
                yield self._names[line.parameters[name]], gradient(line)[offset : offset + stop - start]

    def parameter_pieces(self) -> Iterator[tuple[str, Tensor]]:
        """What this rank steps of the parameters, in full precision, as views of its shards: name, and elements."""
        for line, _ in self.lines():
            assert line.master is not None
            for name, start, stop, offset in line.partition.segments(line.rank):
                yield self._names[line.parameters[name]], line.master.detach()[offset : offset + stop - start]

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device


def gradient(line: FlatShard) -> Tensor:
    """This rank's shard of the gradient of a line."""
    if line.gradient is None:
        raise RuntimeError("there are no gradients: call synchronize() after the last backward, before this")
    return line.gradient


class _Bag(nn.Module):
    """Parameters as a module that is never called, to make lines of. Dots in names become slashes."""

    def __init__(self, named: dict[str, nn.Parameter]):
        super().__init__()
        for name, parameter in named.items():
            # torch takes no dots in a parameter's name.
            self.register_parameter(name.replace(".", "/"), parameter)

    @classmethod
    def by_layer(cls, named: dict[str, nn.Parameter]) -> nn.ModuleList:
        """Bags of layers that follow each other: units whose parameters lie in a line, and travel in one message.

        Layers are the blocks, the embedding, and the last norm with the head.
        """
        layers: dict[str, dict[str, nn.Parameter]] = {}
        for name, parameter in named.items():
            first, number, *_ = name.split(".")
            rest = first if first == "embedding" else "end"
            layers.setdefault(f"{first}.{number}" if first == "blocks" else rest, {})[name] = parameter
        bags: list[dict[str, nn.Parameter]] = [{}]
        for layer in layers.values():
            # A layer joins those before it: each message costs time of its own, and a long one leaves late.
            if sum(parameter.numel() for parameter in bags[-1].values()) >= TOGETHER:
                bags.append({})
            bags[-1].update(layer)
        return nn.ModuleList(cls(each) for each in bags)
