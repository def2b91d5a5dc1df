"""`minitrain.parameter_server.synchronous` for several servers, any module, and pushes that are refused, with checks.

**Idea.** A server has the traffic of all workers on its link, so the parameters are spread over several servers, each
with the optimizer states of its share (whole tensors, see `placement`).

Open `parameter_server/full/placement.py`, `parameter_server/full/shares.py`, and then this file.
**Source.** Besides Li et al. 2014 (who call it "sequential"): Valiant 1990, "A Bridging Model for Parallel
Computation", for the name BSP; Sergeev & Del Balso 2018, "Horovod", §3, on why rings replaced it.
**Sent.** At the start, the first server's parameters and buffers to all. Then as in the small form, from and to each
server for its share; a push has a flag for each gradient as well.
**Waits for the GPU** at each push, to read its flags.
**Cost.** One server's link carries 2nS bytes per step, with k servers about 2nS/k; a ring's carries 4(n−1)/n · S, in
and out. The two are equal with about half as many servers as workers:
`minitrain.costs.parameter_server.servers_to_match`.
Also called `dist_sync` of MXNet's KVStore; centralized training; BytePS, with as many servers as needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from minitrain.comm.messages import receive, send
from minitrain.parameter_server.full.roles import Roles
from minitrain.parameter_server.full.shares import Parcel, meet, shares

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Server:
    """Keeps a share of the parameters, and moves it by the mean of the workers' gradients.

    Args:
        module: The same as the workers', on the device where the share is kept. Only the share is used, and changed in
            place; the rest may be freed.
        make_optimizer: Makes any torch optimizer of a list of parameters: `partial(torch.optim.AdamW, lr=1e-3)`.
        roles: The servers and the workers.

    Attributes:
        parcels: This server's share.
        optimizer: That of the share; None if the share is empty. Its learning rate may be changed between two
            `serve(1)`.
        step: Steps done so far.
        refused: By worker, how many of its pushes were refused and counted as nothing.

    Raises:
        ValueError: On every rank alike, before anything is sent: roles differ, leave out a rank or have no worker; a
            rank is a worker in roles and made a Server; modules differ; an embedding asks for sparse gradients.
    """

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer, roles: Roles):
        meet(module, roles, serves=True)
        self.roles, self.step = roles, 0
        self.parcels = shares(module, len(roles.servers))[roles.servers.index(dist.get_rank(roles.group))]
        share = [parameter for parcel in self.parcels for parameter in parcel.parameters.values()]
        self.optimizer = make_optimizer(share) if share else None
        self.refused = dict.fromkeys(roles.workers, 0)

    def serve(self, steps: int) -> None:
        """Serve `steps` pulls and as many pushes of every worker, in turns.

        A pull needs no request, since all ranks know that it is due. Workers go to servers and servers to workers in
        rising order, first all pulls, then all pushes. So no ranks wait in a cycle, even if a network carries one
        message at a time.

        Raises:
            RuntimeError: A worker did not come within the group's time limit; names it and the step. With NCCL only
                where ranks are checked: otherwise its watchdog ends the process.
        """
        for _ in range(steps):
            self.answer()
            self._collect()
            if self.optimizer is not None:
                self.optimizer.step()
            self.step += 1

    def answer(self) -> None:
        """Serve one pull of every worker and nothing else, such as a last one for the result."""
        leaving = []
        for parcel in self.parcels:
            values = parcel.pack_values()
            for worker in self.roles.workers:
                # One message to each worker: the share as it is now.
                # All are started before one is waited for: a slow worker holds up no other.
                leaving.append((worker, send(values, worker, self.roles.group)))
        for worker, departure in leaving:
            with _named(f"step {self.step}: worker {worker} did not pull"):
                departure.wait()

    def _collect(self) -> None:
        """Take in every worker's push; the mean of those that are not refused becomes the gradient."""
        # A set, since a worker refuses all its parcels at once, and that is one push.
        refused = {worker for parcel in self.parcels for worker in self._add_up(parcel)}
        for worker in refused:
            self.refused[worker] += 1

    def _add_up(self, parcel: Parcel) -> list[int]:
        """Add a parcel's pushes in the workers' order, and divide by their number; returns which were refused."""
        workers, refused = self.roles.workers, []
        # Two buffers in turn: one fills while the other is added. One for each worker would be n times the share.
        buffers = parcel.flat.new_empty(2, len(parcel.flat))
        # One message from each worker: gradients and flags. They are added in the workers' order, not that of arrival,
        # so that a run can be repeated to the last bit.
        arriving = [receive(buffers[i], worker, self.roles.group) for i, worker in enumerate(workers[:2])]
        taken = 0
        for turn, worker in enumerate(workers):
            with _named(f"step {self.step}: no push from worker {worker}"):
                arriving[turn].wait()
            push = buffers[turn % 2]
            if parcel.refused(push):
                refused.append(worker)
            else:
                parcel.flat.add_(push) if taken else parcel.flat.copy_(push)
                taken += 1
            if turn + 2 < len(workers):
                # The one after next, into the buffer that is free again.
                arriving.append(receive(push, workers[turn + 2], self.roles.group))
        if taken:
            parcel.flat.div_(taken)
        else:
            parcel.flat.zero_()  # flags of 0: no worker used it, and the optimizer changes nothing
        parcel.unpack_gradients()
        return refused


class Worker:
    """Fetches the parameters and sends gradients home. A step is `pull()`, forward, backward, `push()`, `zero_grad()`.

    It holds parameters and gradients, a second copy of both for sending, and no optimizer states.

    Args:
        module: Any module, on the device where it computes; its state dict is that of a run on one device. A parameter
            that several layers share travels once, a frozen one and buffers at the start only.
        roles: The servers and the workers.

    Attributes:
        step: Pushes so far.
        refused: How many of them had a NaN or an infinity and counted as nothing.

    Raises:
        ValueError: See `Server`.
    """

    def __init__(self, module: nn.Module, roles: Roles):
        meet(module, roles, serves=False)
        self.module, self.roles = module, roles
        self.step = self.refused = 0
        self._shares = list(zip(roles.servers, shares(module, len(roles.servers)), strict=True))
        self._frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}

    def pull(self) -> None:
        """Update the parameters to the servers' current values; RuntimeError names one that did not answer in time."""
        arriving = []
        for server, parcels in self._shares:
            for parcel in parcels:
                # One message from each server: its share of the parameters.
                arriving.append((server, parcel, receive(parcel.values, server, self.roles.group)))
        for server, parcel, arrival in arriving:
            with _named(f"step {self.step}: no answer from server {server}"):
                arrival.wait()
            parcel.unpack_values()

    def push(self) -> None:
        """Send the gradients to the servers; returns when they have them. `.grad` stays as it is.

        Micro-batches need nothing special: their gradients add up in `.grad` until they are pushed.

        A parameter without a gradient counts as one of zeros; one that no worker used is left alone. A NaN or an
        infinity anywhere makes the whole push count as nothing: the servers take the mean of the others', and if there
        are none, nothing changes. Only the worker sees its whole gradient, so the worker refuses.

        Raises:
            ValueError: A gradient is sparse.
            RuntimeError: A server did not take it within the group's time limit; or a parameter was frozen at the start
                and now has a gradient.
        """
        refuse = not self._finite()
        leaving = []
        for server, parcels in self._shares:
            for parcel in parcels:
                # One message to each server: the gradients of its share, and flags.
                leaving.append((server, send(parcel.pack_gradients(refuse), server, self.roles.group)))
        for server, departure in leaving:
            with _named(f"step {self.step}: server {server} did not take the push"):
                departure.wait()
        self.refused += refuse
        self.step += 1

    def _finite(self) -> bool:
        """Whether no gradient has a NaN or an infinity. Refuses gradients that cannot be sent."""
        for name, parameter in self._frozen.items():
            if parameter.grad is not None:
                raise RuntimeError(
                    f"{name} was frozen when the Worker was made and now has a gradient, which no server waits for; "
                    "make it again after changing requires_grad"
                )
        finite = []
        for name, parameter in self.module.named_parameters():
            if parameter.grad is None:
                continue
            if parameter.grad.layout != torch.strided:
                raise ValueError(
                    f"the gradient of {name} is sparse ({parameter.grad.layout}), which a push of whole tensors cannot "
                    "hold; make the embedding with sparse=False, or use minitrain.recommender.embedding"
                )
            finite.append(parameter.grad.isfinite().all())
        return all(map(bool, finite))  # read last, so that a GPU is waited for only once


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Name the message that did not arrive; the backend only knows that one did not."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(f"{what} ({str(error).splitlines()[0]})") from error
