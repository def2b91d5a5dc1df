"""The asynchronous parameter server: each push is applied when it arrives, and workers drift apart by a bound.

**Idea.** A slow worker delays only itself. The price is staleness: a gradient comes from parameters that others have
stepped since. Under bounded staleness (SSP) a worker begins a step only if it is at most s steps ahead of the slowest:
s = 0 waits for all, None for nobody.

**Source.** Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", §2.
**Sent.** As in `synchronous`. It needs gloo: the server has a receive open for every worker and takes whichever is done
first. NCCL runs the messages of a rank in the order in which they were started, so a slow worker would hold up all.
**Cost.** 2S bytes per step of a worker. The server holds parameters, optimizer states, and a push of each worker.
The full form, `minitrain.parameter_server.full.asynchronous`, adds a virtual clock, workers that leave or die, frozen
and unused parameters, buffers, pushes that are refused, and checks.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group, place, receive, send
from minitrain.parameter_server.synchronous import SERVER, MakeOptimizer, Worker, flatten, set_gradients

# Pull, backward, push: a worker cannot tell whether the server waits for the others.
AsynchronousWorker = Worker


class AsynchronousServer:
    """Rank 0; `log` has the worker, its step, and the updates in what it had pulled, for each push as applied."""

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer, staleness: int | None, group: Group = None):
        rank, ranks = place(group)
        assert rank == SERVER and ranks > 1, "rank 0 serves, and all other ranks are workers"
        self.module, self.group, self.staleness = module, group, staleness
        self.flat = flatten(module)  # [elements]
        self.optimizer = make_optimizer(module.parameters())
        self.clocks = dict.fromkeys(range(1, ranks), 0)  # pushes of each worker
        self.pulled = dict.fromkeys(range(1, ranks), 0)  # updates in what it pulled last
        self.log: list[tuple[int, int, int]] = []

    def serve(self, steps: int) -> None:
        """Serve so many steps of every worker, in the order in which they come."""
        idle, arriving = set(self.clocks), {}
        last = {worker: clock + steps for worker, clock in self.clocks.items()}
        # A gloo message cannot be asked whether it is there, so a thread waits for each.
        with ThreadPoolExecutor(len(self.clocks)) as threads:
            while self.clocks != last:
                for worker in sorted(filter(self.may_begin, idle)):
                    idle.remove(worker)
                    self.answer(worker)
                    arriving[threads.submit(self.take, worker)] = worker
                done: set[Future[Tensor]] = wait(arriving, return_when=FIRST_COMPLETED).done
                for push in done:
                    worker = arriving.pop(push)
                    self.apply(worker, push.result())
                    if self.clocks[worker] < last[worker]:
                        idle.add(worker)

    def may_begin(self, worker: int) -> bool:
        lead = self.clocks[worker] - min(self.clocks.values())
        return self.staleness is None or lead <= self.staleness

    def answer(self, worker: int) -> None:
        self.pulled[worker] = len(self.log)
        # The parameters as they are now; the next push is not applied before they have left.
        send(self.flat, worker, self.group).wait()

    def take(self, worker: int) -> Tensor:
        push = torch.empty_like(self.flat)  # [elements]
        # Its gradients, in memory of their own: others are arriving at the same time.
        receive(push, worker, self.group).wait()
        return push

    def apply(self, worker: int, push: Tensor) -> None:
        """One optimizer's step by one worker's gradient, however old."""
        set_gradients(self.module, push)
        self.optimizer.step()
        self.log.append((worker, self.clocks[worker], self.pulled[worker]))
        self.clocks[worker] += 1


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
