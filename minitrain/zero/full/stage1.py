"""The full form of `minitrain.zero.stage1` adds frozen and unused parameters, several dtypes, groups, and checks.

`Zero1` averages the gradients itself. `ShardedOptimizer` works with any data parallelism, whose all-reduce (2Ψ) has
given every rank all gradients; after its step, one all-gather of each line gives every rank the new parameters.

Open `zero/full/partition.py` first, then `zero/full/flat_shards.py`, `zero/full/sharded.py`, and this file.
**Source.** Besides Rajbhandari et al. 2020: Xu et al. 2020, who call it weight-update sharding.
**Sent.** 2Ψ in a step with `Zero1`, 3Ψ with `ShardedOptimizer`: `minitrain.costs.zero.step_traffic`.
**Cost.** `minitrain.costs.zero.held`.
Also called `ZeroRedundancyOptimizer` (PyTorch); P_os in the paper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from minitrain.comm.comm import AnyComm, as_comm
from minitrain.comm.messages import Handle
from minitrain.data_parallel.full.gradient_hooks import call_when_accumulated
from minitrain.zero.full import states
from minitrain.zero.full.elementwise import check_elementwise, share_layers
from minitrain.zero.full.flat_shards import FlatShard, check_dense
from minitrain.zero.full.settings import agree_on_settings, described
from minitrain.zero.full.sharded import Sharded


class ShardedOptimizer(torch.optim.Optimizer):
    """An optimizer whose states are divided over ranks; to be used like the one inside.

    Gradients and parameters must be equal on all ranks, as any data parallelism makes them. Learning-rate schedulers
    work on this optimizer's `param_groups`, which have the whole parameters. A parameter without a gradient counts as
    one with zeros; frozen ones are left alone.

    Args:
        params: Parameters, or parameter groups, as torch's optimizers take them. Their `.data` become views of lines.
        optimizer_class: As for `Sharded`.
        comm: The ranks among which states are divided, as of `minitrain.comm.comm.Comm`; None means everyone.
        **options: Given to `optimizer_class`, as `lr=0.1`.

    Attributes:
        lines: The parameters side by side, one line for each parameter group, dtype and device.

    Raises:
        ValueError: On every rank alike: this rank is not in the group; parameters or settings differ between ranks;
            the optimizer mixes elements.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        comm: AnyComm = None,
        **options: Any,
    ):
        self.comm = as_comm(comm).unchecked
        self.rank, self.ranks = self.comm.rank, self.comm.ranks
        self.lines: list[FlatShard] = []
        self._names: states.Names = []
        self._optimizer_class, self._options = optimizer_class, options
        self._inner: torch.optim.Optimizer | None = None
        super().__init__(params, {})  # calls add_param_group for each group
        self.state = self._within().state
        self.defaults = self._within().defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Lay the parameters of one more group side by side and give this rank's shards to the optimizer inside.

        Every rank must call it.
        """
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        parameters: list[nn.Parameter] = added["params"]
        options = {name: value for name, value in added.items() if name not in ("params", "param_names")}
        first = sum(map(len, self._names))
        names = [str(first + place) for place in range(len(parameters))]  # torch numbers them so, too
        # Devices by number: each rank has a GPU of its own, which has another name than the others'.
        devices = list(dict.fromkeys(p.device for p in parameters))
        kinds = [(p.dtype, p.device.type, devices.index(p.device), p.requires_grad) for p in parameters]
        shapes = [f"{tuple(p.shape)} {kind}" for p, kind in zip(parameters, kinds, strict=True)]
        settings = {"parameters": str(shapes), "optimizer_class": self._optimizer_class.__name__}
        agree_on_settings(settings | {"options": str([described(self._options), described(options)])}, self.comm.group)
        check_elementwise(self._optimizer_class, {**self._options, **options})
        shares = hasattr(self._optimizer_class, "share_layers")
        if shares:  # it checks options and shapes; it gets the shards below
            self._add_inside({"params": parameters, **options})
        members: dict[Any, dict[str, nn.Parameter]] = {}
        for name, parameter, kind in zip(names, parameters, kinds, strict=True):
            if parameter.requires_grad:
                members.setdefault(kind, {})[name] = parameter
        lines = [FlatShard(its, len(self._names), self.rank, self.ranks) for its in members.values()]
        for line in lines:
            line.master = nn.Parameter(line.shard)  # the same memory: no byte more
        self.lines += lines
        self._names.append(names)
        if shares:
            mine = [[line for line in self.lines if line.group == number] for number in range(len(self._names))]
            share_layers(self._within(), mine, self.comm)
        else:
            self._add_inside({"params": [line.master for line in lines], **options})
        self._copy_options(self._within().param_groups[-1], added)  # with those that only the optimizer inside has

    def _add_inside(self, group: dict[str, Any]) -> None:
        if self._inner is None:
            self._inner = self._optimizer_class([group], **self._options)
        else:
            self._inner.add_param_group(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Step this rank's shards, then gather the parameters; returns what `closure` does, as torch's optimizers.

        Raises:
            RuntimeError: A frozen parameter has a gradient, or a parameter was moved out of its line.
        """
        loss = None
        if closure is not None:
            # `step` records nothing, but a closure goes backward.
            with torch.enable_grad():
                loss = closure()
        inner = self._within()
        self._check_frozen()
        for mine, its in zip(self.param_groups, inner.param_groups, strict=True):
            self._copy_options(mine, its)  # the learning rate that a scheduler has set
        for line in self.lines:
            line.check_in_place()
            assert line.master is not None
            line.master.grad = self._gradient_shard(line)
        inner.step()
        for line in self.lines:
            assert line.master is not None
            line.master.grad = None
            if line.flat.numel():
                # Each rank brings its shard, and all get the whole line, into the memory of the parameters.
                self.comm.all_gather(line.flat).wait()
        return loss

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """The states of all ranks, as the plain optimizer has them; every rank must call it."""
        return states.whole(self._within(), self.lines, self._names, self.comm)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # type: ignore[override]
        """Load such a state dict, or that of a plain optimizer; nothing is sent.

        Raises:
            ValueError: It belongs to other parameters; names the first mismatch.
        """
        states.load(self._within(), self.lines, self._names, self.rank, state_dict)
        self.state = self._within().state
        for mine, its in zip(self.param_groups, self._within().param_groups, strict=True):
            self._copy_options(its, mine)

    def _within(self) -> torch.optim.Optimizer:
        assert self._inner is not None, "the base class refuses an empty list of parameters"
        return self._inner

    def _copy_options(self, source: dict[str, Any], target: dict[str, Any]) -> None:
        target.update({name: value for name, value in source.items() if name not in ("params", "param_names")})

    def _gradient_shard(self, line: FlatShard) -> Shaped[Tensor, " shard"]:
        """This rank's part of the gradients, which lie wherever autograd has put them."""
        # Zeros for padding and for parameters without a gradient: the optimizer steps the shard as one tensor.
        shard = torch.zeros_like(line.shard)
        for name, start, stop, offset in line.partition.segments(self.rank):
            if (gradient := line.parameters[name].grad) is not None:
                shard[offset : offset + stop - start] = gradient.detach().flatten()[start:stop]
        return shard

    def _check_frozen(self) -> None:
        laid_out = {id(parameter) for line in self.lines for parameter in line.parameters.values()}
        every = [parameter for each in self.param_groups for parameter in each["params"]]
        for number, parameter in enumerate(every):
            if parameter.grad is not None and id(parameter) not in laid_out:
                raise RuntimeError(
                    f"parameter {number} was frozen when the optimizer was made and now has a gradient; "
                    "make the optimizer again after changing requires_grad"
                )


class Zero1(Sharded):
    """Divides the optimizer states over the ranks.

    `synchronize()` overwrites the gradients' lines: this rank's part (`line.gradient`) is then the mean over ranks, and
    the rest is undefined until `zero_grad()`. It sends all lines, unless `send_in_backward` has them leave earlier.

    Examples:
        >>> from minitrain.zero import Zero1
        >>> model = Zero1(model, torch.optim.AdamW, lr=0.01)
        >>> cross_entropy(model(tokens), targets).backward()
        >>> model.synchronize()
        >>> norm = model.clip_grad_norm(1.0)
        >>> model.step()
    """

    def _prepare(self) -> None:
        self._flats = [torch.zeros_like(line.flat, dtype=self.reduce_dtype) for line in self._trainable]
        # `.grad` is such a view from the start, so autograd adds where the line is sent from, and nothing is copied.
        self._views = [line.partition.views(flat) for line, flat in zip(self._trainable, self._flats, strict=True)]
        self._turns: list[int] = []  # lines that leave during backward, in this order
        self._passes = 0
        self._begin_step()
        self._hand_out()

    def send_in_backward(self, passes: int, later: Collection[nn.Parameter] = ()) -> None:
        """From now on, send each line of gradients while backward goes on, as soon as it is complete.

        A line that is not complete when backward has ended, since some parameter was not used, leaves in
        `synchronize()`, as do its followers. Gradients must not be changed between backward and `synchronize()`.

        Args:
            passes: How often in a step a backward brings a parameter its gradient: the number of micro-batches.
            later: Parameters whose gradients are not complete after these; their lines leave in `synchronize()`.
        """
        names = [line.parameters.items() for line in self._trainable]
        apart = {id(parameter) for parameter in later}
        self._passes = passes
        # Backward completes the last lines first. All ranks use this order, since messages are matched by order.
        self._turns = [
            number for number, its in reversed([*enumerate(names)]) if not any(id(p) in apart for _, p in its)
        ]
        self._hooked = [
            call_when_accumulated(parameter, self._arrive, number, name)
            for number in self._turns
            for name, parameter in names[number]
        ]
        self._begin_step()

    def _begin_step(self) -> None:
        self._arrived: Counter[str] = Counter()
        self._missing = [len(line.parameters) for line in self._trainable]  # that have not got all their gradients
        self._next = 0  # of the lines in turn
        self._handles: dict[int, Handle] = {}

    @torch.no_grad()
    def _arrive(self, number: int, name: str, parameter: Tensor) -> None:
        """The hook: count a gradient, and start the lines that are complete and next in turn."""
        self._arrived[name] += 1
        if self._arrived[name] > self._passes:
            raise RuntimeError(
                f"{name} got more than passes={self._passes} gradients in a step, and has been sent; call "
                "synchronize() and zero_grad() before the next"
            )
        self._missing[number] -= self._arrived[name] == self._passes
        # A complete line waits for its turn: on another rank the one before it may be complete first.
        while self._next < len(self._turns) and not self._missing[self._turns[self._next]]:
            self._send(self._turns[self._next])
            self._next += 1

    @torch.no_grad()
    def synchronize(self) -> None:
        """Make every gradient shard its mean over all ranks, after the last backward of a step; see `Sharded`."""
        self._check_unchanged()
        if any(line.gradient is not None for line in self._trainable):
            raise RuntimeError("synchronize() was called before; call zero_grad() before the next backward")
        # First the rest of the turns, as a rank that has sent them in backward did; then all others.
        for number in dict.fromkeys([*self._turns[self._next :], *range(len(self._trainable))]):
            if number not in self._handles:
                self._send(number)
        for number, handle in self._handles.items():
            handle.wait()
            line = self._trainable[number]
            line.gradient = line.partition.shard(self._flats[number], self.rank)

    def _send(self, number: int) -> None:
        """Start a line on its way to the mean over ranks."""
        line, flat = self._trainable[number], self._flats[number]
        for name, view in self._views[number].items():
            self._collect(name, line.parameters[name], view)
        self._handles[number] = self._average(flat) if flat.numel() else Handle((), flat)

    def _average(self, flat: Shaped[Tensor, " padded"]) -> Handle:
        """Begin to make this rank's shard of a line of gradients its mean over ranks."""
        flat.mul_(1 / self.ranks)  # before the sum, as DDP does: low precision then cannot overflow
        # Every rank brings all gradients of the line and gets the mean of its own shard.
        return self.comm.reduce_scatter(flat)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad()
        for flat in self._flats:
            # Filled, not dropped, so that `.grad` stays where the line is sent from.
            flat.zero_()
        self._begin_step()
        self._hand_out()

    def _hand_out(self) -> None:
        for line, views in zip(self._trainable, self._views, strict=True):
            for name, view in views.items():
                if self.reduce_dtype:
                    line.parameters[name].grad_dtype = view.dtype  # autograd adds in it
                line.parameters[name].grad = view

    def _collect(self, name: str, parameter: nn.Parameter, view: Tensor) -> None:
        """Bring a gradient to its place, in case it was put elsewhere."""
        if parameter.grad is None:
            view.zero_()  # set to None by the user
            return
        check_dense(name, parameter.grad)
        if parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad)
        elif parameter.grad.stride() != view.stride():
            view.copy_(parameter.grad.clone())  # the same memory, read in another order
