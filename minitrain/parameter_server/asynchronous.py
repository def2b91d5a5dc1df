"""The asynchronous parameter server: each push is applied when it arrives, and workers drift apart up to a bound.

**Idea.** A slow worker delays only itself. The price is staleness: by the time a gradient arrives, pushes of other
workers have changed the parameters from which it was computed. With bounded staleness (SSP) a worker may begin a step
only if it is at most s steps ahead of the slowest worker. With s = 0 it waits for all others, with s = None for none.

**Source.** Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", §2.
**Sent.** As in `synchronous`, with gloo only: the server has one receive open per worker and applies whichever push is
done first. NCCL runs a rank's messages in the order in which they were started, so a slow worker would delay the rest.
**Cost.** 2S bytes per step of a worker. The server holds parameters, optimizer states, and one push per worker.
Also called asynchronous SGD, Downpour SGD, SSP; `dist_async` of MXNet's KVStore. There is no full form.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group, rank_and_size, receive, send
from minitrain.parameter_server.synchronous import SERVER, MakeOptimizer, Worker, flatten, set_gradients

# Pull, backward, push, as before: a worker does not notice how the server works.
AsynchronousWorker = Worker


class AsynchronousServer:
    """Rank 0, which steps the parameters with one push at a time.

    Args:
        module: Its parameters are served.
        make_optimizer: From parameters to an optimizer.
        staleness: s, how many steps a worker may be ahead of the slowest; None: any number.
        group: The server and its workers; None means everyone.

    Attributes:
        log: For each push, in the order of updates: its worker, the worker's step, and the version of the parameters
            (the number of updates in them) that the worker had pulled.
    """

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer, staleness: int | None, group: Group = None):
        rank, ranks = rank_and_size(group)
        assert rank == SERVER and ranks > 1, "rank 0 serves, and all other ranks are workers"
        self.module, self.group, self.staleness = module, group, staleness
        self.flat = flatten(module)  # [elements]
        self.optimizer = make_optimizer(module.parameters())
        self.clocks = dict.fromkeys(range(1, ranks), 0)  # each worker's pushes so far
        self.pulled = dict.fromkeys(range(1, ranks), 0)  # the version that each worker pulled last
        self.log: list[tuple[int, int, int]] = []

    def serve(self, steps: int) -> None:
        """Serve this number of steps of every worker, in the order in which pushes arrive."""
        idle, arriving = set(self.clocks), {}
        last = {worker: clock + steps for worker, clock in self.clocks.items()}
        # gloo cannot say whether a message has arrived, so a thread waits for each push.
        with ThreadPoolExecutor(len(self.clocks)) as threads:
            while self.clocks != last:
                # Workers that are not too far ahead get the parameters; the others stay idle.
                for worker in sorted(filter(self.may_begin, idle)):
                    idle.remove(worker)
                    self.answer(worker)
                    arriving[threads.submit(self.take, worker)] = worker
                # Every push that has arrived is one update.
                done: set[Future[Tensor]] = wait(arriving, return_when=FIRST_COMPLETED).done
                for push in done:
                    worker = arriving.pop(push)
                    self.apply(worker, push.result())
                    if self.clocks[worker] < last[worker]:
                        idle.add(worker)

    def may_begin(self, worker: int) -> bool:
        """The rule of SSP."""
        lead = self.clocks[worker] - min(self.clocks.values())
        return self.staleness is None or lead <= self.staleness

    def answer(self, worker: int) -> None:
        self.pulled[worker] = len(self.log)
        # Waited for, so that no push changes the parameters while they are being sent.
        send(self.flat, worker, self.group).wait()

    def take(self, worker: int) -> Tensor:
        push = torch.empty_like(self.flat)  # [elements]
        # Its gradients, into memory of their own, since other pushes arrive at the same time.
        receive(push, worker, self.group).wait()
        return push

    def apply(self, worker: int, push: Tensor) -> None:
        """Step the optimizer with one worker's gradient, however old it is."""
        set_gradients(self.module, push)
        self.optimizer.step()
        self.log.append((worker, self.clocks[worker], self.pulled[worker]))
        self.clocks[worker] += 1


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
