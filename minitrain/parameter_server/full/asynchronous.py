"""`minitrain.parameter_server.asynchronous` for any module, workers that leave or die, and virtual time, with checks.

Open `parameter_server/full/clocks.py`, `parameter_server/full/inbox.py`, and then this file.
**Source.** Besides Ho et al. 2013: Dean et al. 2012, "Large Scale Distributed Deep Networks", §4.1 (Downpour SGD); Li
et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", §3.5.
**Sent.** As in the small form; the first pull also brings frozen parameters and buffers. The server serves in order of
arrival, with a receiving thread for each worker (`inbox.py`). NCCL cannot receive from whichever rank sends first, so
all messages travel on a gloo group (`on_gloo`), and wait for the GPU each time. There is one server: several would each
serve in their own order.
**Cost.** Bytes: `minitrain.costs.staleness.bytes_served`. Time and staleness: `steps_until`, `most_stale`. The learning
rate must fall as staleness grows: `largest_rate`.
Also called asynchronous SGD, SSP, Downpour SGD; `dist_async` of MXNet's KVStore; `ParameterServerStrategy`
(TensorFlow).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm import Ledger, VirtualClock, receive, send
from minitrain.comm.control import control, gather_objects
from minitrain.comm.groups import backend, new_group
from minitrain.data_parallel.full.replica import agree_on_states
from minitrain.parameter_server.full.clocks import Clocks
from minitrain.parameter_server.full.inbox import DEATH, LEAVE, PATIENCE, PULL, PUSH, TAG, Inbox, Message, announce
from minitrain.parameter_server.full.roles import Roles

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Update:
    """A gradient that the server took in.

    Attributes:
        step: The worker's clock at that time: its pushes before this one.
        version: Number of updates in the parameters that it was computed from.
        staleness: Updates applied since those parameters were pulled.
        time: Virtual time at which it was applied; 0 without a virtual clock.
        applied: False if it was refused, since it was not finite.
    """

    worker: int
    step: int
    version: int
    staleness: int
    time: float
    applied: bool


def on_gloo(roles: Roles) -> Roles:
    """The same roles on a gloo group.

    If the group is NCCL's, `new_group` makes a second one, so every rank of the world must call this.

    Raises:
        ValueError: The group is NCCL's and not everyone's. torch would let the ranks outside take part in a split of
            everyone's communicator that those inside never reach.
    """
    if backend(roles.group) == "gloo":
        return roles
    if dist.get_world_size(roles.group) < dist.get_world_size():
        raise ValueError(
            f"roles.group has {dist.get_world_size(roles.group)} of {dist.get_world_size()} ranks and is NCCL's; "
            "make the roles of everyone's group"
        )
    group = new_group(dist.get_process_group_ranks(roles.group or dist.group.WORLD), backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return replace(roles, group=group)


class AsynchronousServer:
    """Keeps the parameters and serves workers in their order of arrival.

    Args:
        module: The model, on the device where it is kept; all workers start from its parameters.
        make_optimizer: Makes the optimizer of a list of parameters.
        roles: One server, and the workers, on a gloo group.
        staleness: s: steps that a worker may be ahead of the slowest when it begins one; None for no bound.

    Attributes:
        updates: Every gradient that arrived, in the order of application.
        leads: For each pull, how many steps its worker was ahead of the slowest when it was answered.
        died: Workers that died.

    Raises:
        ValueError: Roles, modules or `staleness` are invalid; on every rank alike, before anything is sent.
    """

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer, roles: Roles, staleness: int | None):
        complaint = ""
        try:
            self.clocks = Clocks(roles.workers, staleness)
        except ValueError as error:
            # Raised in `_check` on every rank: the workers would wait for a server that has ended.
            complaint = str(error)
        _check(module, roles, True, complaint)
        self.module, self.roles = module, roles
        self.updates: list[Update] = []
        self.leads: list[int] = []
        self.died: list[int] = []
        self._trained = _trained(module)
        self._optimizer = make_optimizer(self._trained)
        self._present = set(roles.workers)
        self._held: list[Message] = []  # pulls that must wait for the slowest, in order of arrival
        self._pulled: dict[int, int] = {}  # worker -> number of updates in what it pulled last
        self._applied = 0

    @property
    def refused(self) -> dict[int, int]:
        """How many gradients of each worker were not finite and therefore not applied."""
        refused = [update.worker for update in self.updates if not update.applied]
        return {worker: refused.count(worker) for worker in sorted(set(refused))}

    def serve(self, ledger: Ledger | None = None, after: Callable[[Update], None] | None = None) -> None:
        """Serve until every worker has left or died, calling `after` each update.

        The ledger also counts what the threads send and receive.
        """
        inbox = Inbox(self._trained, self.roles.workers, self.roles.group, ledger)
        while self._present:
            # Workers that are held wait for an answer, and send nothing.
            message = inbox.take(self._present - {held.worker for held in self._held})
            if message.worker not in self._present:
                continue  # it died while it was answered, and now its thread says so, too
            self._arrive(message)
            if message.kind == PUSH:
                self._apply(message, after)
            elif message.kind == PULL:
                self._held.append(message)
            else:
                self._lose(message.worker, died=message.kind == DEATH)
            # The pulls that the bound now allows, in their order of arrival.
            while ready := next((held for held in self._held if self.clocks.may_begin(held.worker)), None):
                self._held.remove(ready)
                self._answer(ready.worker)
        for worker in self.roles.workers:
            if worker not in self.died:
                self._farewell(worker)

    def _arrive(self, message: Message) -> None:
        """On the virtual clock: the server goes on when the message has passed its receive port."""
        clock = VirtualClock.active()
        if clock is None:
            return
        clock.wait_until(message.left)
        source = dist.get_process_group_ranks(self.roles.group or dist.group.WORLD)[message.worker]
        for gradient, left in zip(message.gradients, message.times, strict=True):
            if gradient is not None:
                clock.finish_receive(gradient.nbytes, source, left)

    def _apply(self, message: Message, after: Callable[[Update], None] | None) -> None:
        """Take an optimizer's step with a worker's gradient, unless it would spoil the parameters."""
        worker, version = message.worker, self._pulled[message.worker]
        finite = all(bool(g.isfinite().all()) for g in message.gradients if g is not None)
        clock = VirtualClock.active()
        now = clock.now if clock else 0.0
        update = Update(worker, self.clocks[worker], version, self._applied - version, now, finite)
        if finite:
            for parameter, gradient in zip(self._trained, message.gradients, strict=True):
                # None where the worker had none, so that the optimizer leaves the parameter alone.
                parameter.grad = gradient
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._applied += 1
        self.clocks.finish(worker)  # also of a refused one: the others must not wait for it for ever
        self.updates.append(update)
        if after is not None:
            after(update)

    def _answer(self, worker: int) -> None:
        # Frozen parameters and buffers do not change, and are sent once.
        tensors = list(self._trained) if worker in self._pulled else _everything(self.module)
        self.leads.append(self.clocks.lead(worker))
        self._pulled[worker] = self._applied
        try:
            # Go on, worker: what you asked for follows.
            control(self.roles.group).send([torch.zeros(1)], worker, TAG).wait()
            # The parameters, one message each. They must not change before they have left.
            for handle in [send(t.detach().contiguous(), worker, self.roles.group) for t in tensors]:
                handle.wait()
        except RuntimeError:  # gloo: the connection is closed
            self._lose(worker, died=True)

    def _lose(self, worker: int, died: bool) -> None:
        """Go on without a worker; workers that waited for it may now begin."""
        self._present.remove(worker)
        self._held = [held for held in self._held if held.worker != worker]
        self.clocks.leave(worker)
        if died:
            self.died.append(worker)

    def _farewell(self, worker: int) -> None:
        """Tell a worker that all have left, and who died."""
        dead = torch.tensor([float(other in self.died) for other in self.roles.workers])
        try:
            control(self.roles.group).send([dead], worker, TAG).wait()
        except RuntimeError:  # it died after it left
            self.died.append(worker)


class AsynchronousWorker:
    """Pulls parameters, lets the caller compute gradients, and pushes them.

    A step is `pull()`, forward and backward, `push()`. After the last comes `leave()`.

    Args:
        module: The model, of the same shapes as the server's.
        roles: One server, and the workers, on a gloo group.

    Raises:
        ValueError: As on the server.
    """

    def __init__(self, module: nn.Module, roles: Roles):
        _check(module, roles, False)
        self.module, self.roles = module, roles
        self._trained = _trained(module)
        self._pulled = False  # whether this worker has had its first pull, which brings more
        self._may_push = False

    @torch.no_grad()
    def pull(self) -> None:
        """Ask for the parameters, and wait for them: longer if this worker is too far ahead of the slowest.

        Raises:
            ConnectionError: The server is gone.
        """
        self._tell(PULL)
        tensors = list(self._trained) if self._pulled else _everything(self.module)
        with self._while_the_server_lives():
            # The server's go; it may take as long as the slowest worker does.
            control(self.roles.group).recv([torch.empty(1)], self._server, TAG).wait(PATIENCE)
            buffers = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in tensors]
            # The parameters, one message each.
            for handle in [receive(buffer, self._server, self.roles.group) for buffer in buffers]:
                handle.wait()
        for tensor, buffer in zip(tensors, buffers, strict=True):
            # Only now that all have arrived: a server that dies in between leaves no mixture of two versions.
            tensor.copy_(buffer)
        self._pulled = self._may_push = True

    def push(self) -> None:
        """Send the gradients, and drop them. A parameter without one is left out, and its update skipped.

        Raises:
            RuntimeError: Nothing has been pulled since the last push, so what the gradients belong to is unknown.
            ConnectionError: The server is gone.
        """
        if not self._may_push:
            raise RuntimeError("push() before pull(): each step begins with pull(), so that staleness can be known")
        self._may_push = False
        gradients = [parameter.grad for parameter in self._trained]
        self._tell(PUSH, [gradient is not None for gradient in gradients])
        with self._while_the_server_lives():
            # The gradients, one message each, all waited for before the next backward changes them.
            for handle in [send(g.contiguous(), self._server, self.roles.group) for g in gradients if g is not None]:
                handle.wait()
        for parameter in self._trained:
            parameter.grad = None

    def leave(self) -> tuple[int, ...]:
        """Stop taking part; returns, once all workers have left, the ranks of those that died.

        Raises:
            ConnectionError: The server is gone.
        """
        self._tell(LEAVE)
        dead = torch.empty(len(self.roles.workers))
        with self._while_the_server_lives():
            # The server's last word, when everyone is done.
            control(self.roles.group).recv([dead], self._server, TAG).wait(PATIENCE)
        return tuple(worker for worker, died in zip(self.roles.workers, dead.tolist(), strict=True) if died)

    @property
    def _server(self) -> int:
        return self.roles.servers[0]

    def _tell(self, kind: int, present: list[bool] | None = None) -> None:
        with self._while_the_server_lives():
            announce(kind, present or [False] * len(self._trained), self._server, self.roles.group)

    @contextmanager
    def _while_the_server_lives(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # gloo: the connection is closed
            raise ConnectionError(
                f"the parameter server, rank {self._server}, is gone, and with it the parameters; start again from its "
                "last checkpoint"
            ) from error


def _trained(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that get gradients, each once."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _everything(module: nn.Module) -> list[Tensor]:
    """All that a worker needs once: first trained parameters, then frozen ones, then buffers."""
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    return [*_trained(module), *frozen, *module.buffers()]


def _check(module: nn.Module, roles: Roles, serves: bool, complaint: str = "") -> None:
    """Refuse what cannot work, on every rank, before anything is sent; `complaint` is this rank's own so far."""
    rank, carrier = dist.get_rank(roles.group), backend(roles.group)
    kind = ("worker", "server")
    if carrier != "gloo":
        complaint = f"roles.group is {carrier}'s, which cannot receive from any source; use on_gloo(roles)"
    elif len(roles.servers) != 1:
        complaint = (
            f"roles.servers={roles.servers}: the asynchronous server is one, for several would each apply updates in "
            "an order of their own; use split_roles(1)"
        )
    elif roles.serves != serves:
        complaint = f"rank {rank} is a {kind[roles.serves]} in roles, and made an asynchronous {kind[serves]}"
    everyone = gather_objects((complaint, roles.servers, roles.workers), roles.group)
    for _, servers, workers in everyone:
        if (servers, workers) != everyone[0][1:]:
            raise ValueError(f"roles differ between ranks: {everyone[0][1:]} and {servers, workers}; give all the same")
    for said, _, _ in everyone:
        if said:
            raise ValueError(said)
    agree_on_states(module, 0.0, roles.group)
