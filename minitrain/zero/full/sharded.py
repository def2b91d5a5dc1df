"""The common part of ZeRO's stages: lines of parameters in memory, an optimizer on this rank's shards, and a step.

The module's parameters are laid side by side in flat lines (`partition.py`), one for each unit, dtype, device and
parameter group. Rank r has the r-th shard of every line, and its optimizer knows these shards only: that is what makes
optimizer states 1/n as large. After the step each rank has new values for its own shards, and the lines are gathered.
The stages differ in how they treat gradients (stage 2) and parameters (stage 3).

To build a stage on `Sharded`: `_prepare()` runs once lines and optimizer exist; `synchronize()` has to
call `_check_unchanged()` and to set `line.gradient` of every trainable line; `_all_gather_parameters()` runs after the
step; `shards_parameters = True` gives each line a shard of its own memory and frees the storage of `flat`, which the
stage must then fill when parameters are needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float64, Shaped
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from minitrain.comm.clip_grad_norm import Piece, axes_of, axis, clip_grad_norm, clip_through
from minitrain.comm.comm import AnyComm, Comm, as_comm
from minitrain.comm.messages import Handle
from minitrain.data_parallel.full.replica import agree_on_states, broadcast_all
from minitrain.zero.full.elementwise import check_elementwise, share_layers
from minitrain.zero.full.flat_shards import FlatShard, Unit, lay_out
from minitrain.zero.full.settings import (
    Groups,
    agree_on_settings,
    check_groups,
    described,
    listed,
    names_of,
)
from minitrain.zero.full.units import default_units


class Sharded(nn.Module, ABC):
    """A module whose optimizer states, at least, are divided over ranks.

    Call it like the module. A step is: backward for each micro-batch, all but the last each in a `no_sync()` block of
    its own; then `synchronize()`; then `clip_grad_norm()` if wanted, `step()` and `zero_grad()`.

    Args:
        module: Any module, on the device where it will train. Rank 0's parameters and buffers go to all.
        optimizer_class: One whose step treats each element by itself, such as `torch.optim.AdamW`, or one of
            `minitrain.optimizers.full`, which get what they need of whole layers from the other ranks.
        comm: The ranks that share the batch, as of `minitrain.comm.comm.Comm`; None means everyone.
        compute_dtype: Floating parameters are held in it, and their gradients arrive and travel in it, while the
            optimizer steps copies in float32; floating inputs of forward are cast to it. Buffers keep their dtype, as
            in FSDP2. None: everything as the module has it.
        units: Parts of the module whose parameters travel together; None: the elements of every outermost
            `nn.ModuleList` and `nn.Sequential`. What lies outside is the root's.
        parameter_groups: As torch's optimizers take them, `[{"params": […], "weight_decay": 0.0}, …]`; None: all in
            one. Frozen parameters may be left out.
        reduce_dtype: Gradients are added up in it, over micro-batches and ranks, and travel in it; torch.float32 with a
            `compute_dtype` of 16 bits costs 2 bytes more per parameter. None: as they are computed.
        **optimizer_options: Given to `optimizer_class`, as `lr=0.1`.

    Attributes:
        module: The module itself. In stages 1 and 2 its state dict is that of a run on one device.
        optimizer: The optimizer on this rank's shards, with the parameter groups as given; learning-rate schedulers
            attach here. To be stepped by `step()` only.
        units: The root first, then the units in the module's order.
        lines: The lines of all units, in this order; gradients become final from the last to the first.
        comm, ranks, rank: The ranks that share the batch, how many these are, and this rank among them.
        batch_ranks: How many ranks share the batch: `ranks`, and where other groups have replicas, theirs as well.

    Raises:
        ValueError: On every rank alike, before any parameter is sent: this rank is not in the group; the ranks'
            modules or settings differ; an embedding asks for sparse gradients; the optimizer mixes elements; a unit is
            no part of the module; a parameter is in no group, in two, or not of the module.
    """

    shards_parameters = False  # stage 3: a shard has memory of its own, and the line is freed

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        comm: AnyComm = None,
        compute_dtype: torch.dtype | None = None,
        *,
        units: Sequence[nn.Module] | None = None,
        parameter_groups: Groups | None = None,
        reduce_dtype: torch.dtype | None = None,
        **optimizer_options: Any,
    ):
        super().__init__()
        self.comm = as_comm(comm).unchecked  # settings are compared here, so nothing is compared afterwards
        self.ranks, self.rank = self.comm.ranks, self.comm.rank
        self.batch_ranks = self.ranks
        parts = default_units(module) if units is None else units
        parts = list({id(part): part for part in parts if part is not module}.values())  # each once; the root is one
        groups = listed(module, parameter_groups)
        # The settings are compared before they are checked: a mistake is then an error on every rank, or on none.
        settings = {
            "the class": type(self).__name__,
            "optimizer_class": optimizer_class.__name__,
            "compute_dtype": str(compute_dtype),
            "reduce_dtype": str(reduce_dtype),
            "units": str(names_of(module.named_modules(), parts)),
            "parameter_groups": str([names_of(module.named_parameters(), each["params"]) for each in groups]),
            "optimizer_options": str([described(optimizer_options), *map(described, groups)]),
        }
        self._agree(module, settings)
        check_groups(module, groups)
        for name, dtype in (("compute_dtype", compute_dtype), ("reduce_dtype", reduce_dtype)):
            if dtype is not None and not dtype.is_floating_point:
                raise ValueError(f"{name}={dtype} is not floating; use torch.bfloat16 or torch.float32")
        for each in groups:
            options = {name: value for name, value in each.items() if name != "params"}
            check_elementwise(optimizer_class, {**optimizer_options, **options})
        if shares := hasattr(optimizer_class, "share_layers"):
            # It checks options and shapes while parameters still have shapes; it gets the shards below.
            self.optimizer = optimizer_class([dict(each) for each in groups], **optimizer_options)
        self.module, self.compute_dtype, self.reduce_dtype = module, compute_dtype, reduce_dtype
        names = [names_of(module.named_parameters(), each["params"]) for each in groups]
        self.units: list[Unit] = lay_out(module, parts, names, self.rank, self.ranks)
        self.lines = [line for unit in self.units for line in unit.lines]
        self._trainable = [line for line in self.lines if line.trainable]
        # A rank sees 1/n of the gradients, so torch's own clipping would scale by another norm on each rank.
        clip_through(self, module.parameters())
        # Before anything is cut or rounded, so that masters begin with all of rank 0's bits.
        self._broadcast_states(self.comm)
        for line in self.lines:
            self._cast_and_shard(line)
        mine = [[line for line in self._trainable if line.group == number] for number in range(len(groups))]
        if shares:
            share_layers(self.optimizer, mine, self.comm)
        else:
            masters = [
                {**each, "params": [line.master for line in its]} for each, its in zip(groups, mine, strict=True)
            ]
            self.optimizer = optimizer_class(masters, **optimizer_options)
        self._travels = False  # whether parameters may be on their way when a step has ended
        self._gathers: dict[int, Handle] = {}
        # The values may still be on their way.
        module.register_state_dict_pre_hook(lambda *_: self.wait())
        # Loading the module's state dict also loads what the optimizer steps.
        module.register_load_state_dict_pre_hook(self._before_loading)
        module.register_load_state_dict_post_hook(lambda *_: self._refresh_masters())
        self._prepare()

    def _prepare(self) -> None:
        """Setup that a stage does once, when lines and optimizer exist."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward, its floating inputs in `compute_dtype`."""
        if self.compute_dtype is not None:
            dtype = self.compute_dtype
            args, kwargs = tree_map_only(
                Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, (args, kwargs)
            )
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """The backward of one micro-batch that is not the last of its step.

        Stage 1 has nothing to leave out here: it sends nothing before `synchronize()`.
        """
        yield

    @abstractmethod
    def synchronize(self) -> None:
        """Make every line's gradient shard its mean over all ranks; to be called after the last backward of a step.

        A parameter without a gradient counts as one with zeros, on every rank: a shard is stepped as a whole. So
        momentum and weight decay go on moving it, where torch's optimizers would leave it alone.

        Raises:
            ValueError: A gradient is sparse.
            RuntimeError: Parameters were added, removed, moved, frozen or unfrozen since the module was wrapped.
        """

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float) -> Float64[Tensor, ""]:
        """Scale the gradients so that the 2-norm of all of them together is at most `max_norm`.

        As `torch.nn.utils.clip_grad_norm_` on one device, and `clip_grad_norm_` of FSDP. Each element lies in one
        shard of one rank, so the sum of squares over shards and ranks is that of the whole model; see
        `minitrain.comm.clip_grad_norm`. Between `synchronize()` and `step()`.

        Returns:
            The norm before scaling, the same on all ranks.
        """
        return clip_grad_norm(self, max_norm)

    def gradient_pieces(self) -> Iterator[Piece]:
        """What this rank has of each gradient; between `synchronize()` and `step()`."""
        here = axis(self.comm)
        yield Piece(torch.empty(0, device=self._device()), None, here)  # it takes part, even if nothing is trainable
        for line in self._trainable:
            for piece in line.partition.pieces(self.rank):
                parameter = line.parameters[piece.name]
                yield Piece(parameter, self._gradient(line)[piece.own], axes_of(parameter) | here)

    def gather_in_forward(self, layers: Iterable[nn.Module]) -> None:
        """From now on, `step()` ends with parameters on their way, and each layer waits for its own before its forward.

        Before they are read in any other way than in a forward or a state dict, `wait()` has to be called.

        Args:
            layers: Modules that forward calls, which have all the parameters among them.

        Raises:
            ValueError: A parameter is in none of them.
        """
        layers = list(layers)
        lines = {id(p): number for number, line in enumerate(self.lines) for p in line.parameters.values()}
        reached = {id(parameter) for layer in layers for parameter in layer.parameters()}
        for name, parameter in self.module.named_parameters():
            if id(parameter) not in reached:
                raise ValueError(f"layers do not have the parameter {name}; add the module that uses it")
        for layer in layers:
            own = sorted({lines[id(parameter)] for parameter in layer.parameters() if id(parameter) in lines})
            # Before hooks that may read them.
            # Not compiled: a trace would keep the handles of one step.
            layer.register_forward_pre_hook(
                torch.compiler.disable(lambda *_, own=own: self._wait_for(own)), prepend=True
            )
        self._travels = True

    def wait(self) -> None:
        """Wait until all parameters have arrived; see `gather_in_forward`."""
        self._wait_for(list(self._gathers))

    def _wait_for(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self._gathers:
                self._gathers.pop(number).wait()

    @torch.no_grad()
    def step(self) -> None:
        """Step this rank's shards, and give every rank the new parameters as far as the stage holds them.

        Raises:
            RuntimeError: `synchronize()` has not been called, or parameters changed as it says.
        """
        self._check_unchanged()
        self.wait()  # for layers that no forward has used
        for line in self._trainable:
            assert line.master is not None
            line.master.grad = self._gradient(line).to(line.master)  # itself, where dtype and device are the same
        self.optimizer.step()
        for line in self._trainable:
            assert line.master is not None
            # Where it was cast, it is a copy, which need not live until the next step.
            line.master.grad = None
            self._copy_master_to_shard(line)
        self._all_gather_parameters()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients; `set_to_none` is only for `nn.Module`'s sake: the stage decides about the memory."""
        for line in self._trainable:
            line.gradient = None

    @torch.no_grad()
    def full_state_dict(self) -> dict[str, Any]:
        """The state dict of the plain module, on every rank, gathered line by line; every rank must call it.

        Parameters are as the optimizer has them: in float32 where they are held in fewer bits.
        """
        values: dict[int, Tensor] = {}
        for line in self.lines:
            own = line.shard if line.master is None else line.master.detach()
            flat = own.new_empty(line.partition.elements + line.partition.padding)
            line.partition.shard(flat, self.rank).copy_(own)
            if flat.numel():
                # Each rank brings its shard, and all get the whole line.
                self.comm.all_gather(flat).wait()
            for name, view in line.partition.views(flat).items():
                # By identity, for tied weights have several names. Clones, as saving a view saves its whole line.
                values[id(line.parameters[name])] = view.clone()
        full = self.module.state_dict()
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            full[name] = values[id(parameter)]
        return full

    @torch.no_grad()
    def restore(self) -> None:
        """Give every rank the parameters, after lines' masters were written from outside, as from a checkpoint."""
        self.wait()
        for line in self._trainable:
            self._copy_master_to_shard(line)
        self._all_gather_parameters()
        self.wait()

    def _agree(self, module: nn.Module, settings: dict[str, str]) -> None:
        """Raise ValueError on every rank alike where modules or settings differ."""
        self._compare(module, settings, self.comm)

    def _compare(self, module: nn.Module, settings: dict[str, str], comm: Comm) -> None:
        agree_on_states(module, 0.0, comm.group)
        agree_on_settings(settings, comm.group)

    def _broadcast_states(self, comm: Comm) -> None:
        broadcast_all([*(line.flat for line in self.lines), *self.module.buffers()], comm)

    @torch.no_grad()
    def _cast_and_shard(self, line: FlatShard) -> None:
        """Give a line, still as the module had it, its dtype, its shard and its master."""
        # Kept until the master is made of it: rounded to 16 bits and back, it would have lost the rest.
        exact = line.shard
        if self.compute_dtype is not None and exact.is_floating_point() and exact.dtype != self.compute_dtype:
            line.point(line.flat.to(self.compute_dtype))
        if self.shards_parameters:
            # It was a view of the memory that is freed next.
            line.shard = line.shard.clone()
            line.free()
        if line.trainable:
            line.master = self._make_master(line, exact if exact.dtype != line.shard.dtype else line.shard)

    def _make_master(self, line: FlatShard, exact: Shaped[Tensor, " shard"]) -> nn.Parameter:
        """The optimizer steps the shard itself, if it has enough bits, else a copy in float32 at least.

        An update is often too small to change a weight of 16 bits (Micikevicius et al. 2018, "Mixed Precision
        Training", §3.1). `exact` has the values as the module had them, before they were rounded.
        """
        dtype = self._master_dtype(exact.dtype)
        # `copy`: `exact` is a view of the whole line in full precision, which would otherwise stay in memory.
        return nn.Parameter(line.shard if dtype == line.shard.dtype else exact.to(dtype, copy=True))

    def _master_dtype(self, dtype: torch.dtype) -> torch.dtype:
        rounded = self.compute_dtype is not None and dtype.is_floating_point
        return torch.promote_types(dtype, torch.float32) if rounded else dtype

    def _copy_master_to_shard(self, line: FlatShard) -> None:
        """After a step: round the master into the shard, if they are not the same memory."""
        if line.master is not None and line.master.data_ptr() != line.shard.data_ptr():
            line.shard.copy_(line.master)

    @torch.no_grad()
    def _all_gather_parameters(self) -> None:
        """After the step each rank has new values in its own shards; all get all of them."""
        for number, line in enumerate(self.lines):
            if line.trainable and line.flat.numel():
                # Each rank brings its shard, and all get the whole line, into the memory of the parameters.
                self._gathers[number] = self.comm.all_gather(line.flat)
                if not self._travels:
                    self.wait()  # one by one: gloo needs as much memory again for each one in flight

    @torch.no_grad()
    def _refresh_masters(self) -> None:
        """After parameters were loaded: copy them to the masters, with all their bits."""
        for line in self._trainable:
            if line.master is not None and line.master.data_ptr() != line.shard.data_ptr():
                line.master.copy_(line.shard)

    def _before_loading(self, *_: Any) -> None:
        self.wait()
        if self.shards_parameters:
            raise RuntimeError("the module's parameters are sharded; load them before you wrap it")

    def _gradient(self, line: FlatShard) -> Shaped[Tensor, " shard"]:
        if line.gradient is None:
            raise RuntimeError("there are no gradients: call synchronize() after the last backward, before this")
        return line.gradient

    def _device(self) -> torch.device:
        return self.lines[0].flat.device if self.lines else torch.device("cpu")

    def _check_unchanged(self) -> None:
        """Refuse parameters that differ from those that were laid out."""
        known = {name: (parameter, line) for line in self.lines for name, parameter in line.parameters.items()}
        advice = "wrap the module again"
        for name, parameter in self.module.named_parameters():
            if name not in known or known[name][0] is not parameter:
                raise RuntimeError(f"{name} was added to the module after it was wrapped, and has no shard; {advice}")
            line = known[name][1]
            if parameter.requires_grad != line.trainable:
                verb = "frozen" if line.trainable else "unfrozen"
                raise RuntimeError(f"{name} was {verb} after the module was wrapped; {advice}")
            del known[name]
        if known:
            raise RuntimeError(f"{next(iter(known))} was removed from the module after it was wrapped; {advice}")
        if not self.shards_parameters:
            for line in self.lines:
                line.check_in_place()
