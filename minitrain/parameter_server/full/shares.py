"""How parameters travel between servers and workers: each server's share in one flat tensor, gradients the same way.

Servers and workers build the same module, so both know without asking which tensors a share has and where they lie in
its message. `meet` checks, before anything is sent, that they really do.

A push has, after the gradients, a flag for each of them: 1 where the worker has a gradient, 0 where its backward did
not reach the parameter, and −1 everywhere where the push is refused.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn

from minitrain.comm.comm import Comm
from minitrain.comm.control import differing, gather_objects
from minitrain.data_parallel.full.replica import agree_on_states, broadcast_all
from minitrain.parameter_server.full.placement import place
from minitrain.parameter_server.full.roles import Roles


class Parcel:
    """Trained parameters of one dtype and device that one server keeps, and the flat tensor in which they travel.

    Attributes:
        flat: Room for a push: gradients side by side, followed by a flag for each.
        values: The part of `flat` before the flags: room for a pull.
    """

    def __init__(self, parameters: dict[str, nn.Parameter]):
        self.parameters = parameters
        first = next(iter(parameters.values()))
        sizes = [*(parameter.numel() for parameter in parameters.values()), len(parameters)]
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        # The same memory for both ways, as a pull and a push never overlap.
        self.values = self.flat[: -len(parameters)]
        *parts, self._flags = self.flat.split(sizes)
        self._views = [part.view(p.shape) for part, p in zip(parts, parameters.values(), strict=True)]

    @torch.no_grad()
    def pack_values(self) -> Shaped[Tensor, " elements"]:
        """Copy the parameters to `values`, the content of a pull."""
        for parameter, view in zip(self.parameters.values(), self._views, strict=True):
            view.copy_(parameter)
        return self.values

    @torch.no_grad()
    def unpack_values(self) -> None:
        """Copy `values` to the parameters."""
        for parameter, view in zip(self.parameters.values(), self._views, strict=True):
            parameter.copy_(view)

    @torch.no_grad()
    def pack_gradients(self, refuse: bool) -> Shaped[Tensor, " elements_and_flags"]:
        """Copy the gradients to `flat`, the content of a push; zeros where there is none, and if refused."""
        given = [parameter.grad for parameter in self.parameters.values()]
        for gradient, view in zip(given, self._views, strict=True):
            if gradient is None or refuse:
                view.zero_()
            else:
                view.copy_(gradient)
        flags = [-1.0 if refuse else float(gradient is not None) for gradient in given]
        self._flags.copy_(torch.tensor(flags))
        return self.flat

    @torch.no_grad()
    def unpack_gradients(self) -> None:
        """Copy what is now the mean to the gradients of all parameters that some worker used; the others get None."""
        # Not zeros: these would move a parameter that no worker used if the optimizer has momentum or weight decay.
        used = (self._flags.real > 0).tolist()
        for parameter, view, some in zip(self.parameters.values(), self._views, used, strict=True):
            if not some:
                parameter.grad = None
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(view)

    def refused(self, push: Shaped[Tensor, " elements_and_flags"]) -> bool:
        """Whether what came into `push`, a tensor like `flat`, is a push that its worker refuses."""
        # Any flag tells, as all are −1 then; `.real`, because parameters may be complex.
        return bool(push[-1].real < 0)


def shares(module: nn.Module, servers: int) -> list[list[Parcel]]:
    """What each server keeps of a module: a parcel for each dtype and device.

    A parameter that several layers share is included once, a frozen one not at all.
    """
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    owners = place([parameter.nbytes for parameter in trained.values()], servers)
    found: list[dict[tuple[torch.dtype, torch.device], dict[str, nn.Parameter]]] = [{} for _ in range(servers)]
    for (name, parameter), owner in zip(trained.items(), owners, strict=True):
        found[owner].setdefault((parameter.dtype, parameter.device), {})[name] = parameter
    return [[Parcel(parameters) for parameters in kinds.values()] for kinds in found]


def meet(module: nn.Module, roles: Roles, serves: bool) -> None:
    """Check that all ranks agree, and give them the first server's parameters and buffers; errors as of `Server`."""
    # Before the first message, in which this rank could not take part.
    if dist.get_rank(roles.group) < 0:
        raise ValueError(f"roles.group: this rank ({dist.get_rank()}) is not in it; only its members serve or work")
    _check_roles(roles, serves)
    agree_on_states(module, 0.0, roles.group)
    # The first server's values go to all, frozen parameters and buffers included.
    broadcast_all([*module.parameters(), *module.buffers()], Comm(roles.group, check=False), roles.servers[0])


def _check_roles(roles: Roles, serves: bool) -> None:
    ranks = list(range(dist.get_world_size(roles.group)))
    everyone = gather_objects((roles.servers, roles.workers, serves), roles.group)
    for index, name in enumerate(("servers", "workers")):
        if listed := differing([theirs[index] for theirs in everyone]):
            raise ValueError(f"roles.{name} differs between ranks: {listed}; use the same roles on all")
    if not roles.servers or not roles.workers or sorted([*roles.servers, *roles.workers]) != ranks:
        raise ValueError(
            f"roles.servers={roles.servers} and roles.workers={roles.workers} must name each of the group's "
            f"{len(ranks)} ranks once, with at least one of each; use split_roles(servers)"
        )
    for rank, (servers, _, server) in enumerate(everyone):
        if server != (rank in servers):
            kinds = ("Worker", "Server")
            raise ValueError(
                f"rank {rank} made a {kinds[server]}, but roles.servers={servers}; make a {kinds[not server]} there"
            )
