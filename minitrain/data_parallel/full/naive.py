"""`minitrain.data_parallel.naive` for any model: unused, frozen, tied and transposed parameters, buffers, and checks.

Open `data_parallel/full/replica.py` first, as for all rungs here. The next is `data_parallel/full/bucketed.py`.
**Source.** Li et al. 2020, "PyTorch Distributed", §3.2.1.
**Sent.** Also an all-reduce of one flag per parameter: a parameter that some ranks did not use counts as zeros there,
and one that no rank used is left alone.
**Waits for the GPU** once per step, to read the flags.
**Cost.** Bytes: about `minitrain.costs.data_parallel.ring_traffic`, limit 0; time: `step_time` without overlap.
Also called synchronous data parallelism, distributed synchronous SGD; `DataParallel` in Li et al.'s first sketch.
"""

from __future__ import annotations

import torch

from minitrain.data_parallel.full.replica import Replica, reduced_in


class NaiveDataParallel(Replica):
    """Averages gradients after backward, one parameter at a time. `bucket_megabytes` is only used by the next rungs."""

    @torch.no_grad()
    def synchronize(self) -> None:
        self._begin_synchronize()
        used = self._used_anywhere()
        for name, parameter in self.trainable.items():
            if not used[name]:
                continue
            gradient = self._gradient(name)
            # Zeros where this rank did not use it: others did, and wait for its part of the sum.
            mean = torch.zeros_like(parameter) if gradient is None else gradient * (1 / self.ranks)
            mean = mean.to(reduced_in(parameter, self.reduce_dtype)).contiguous()
            # The sum of every rank's 1/n: one all-reduce for this parameter, waited for before the next is started.
            self.comm.all_reduce(mean).wait()
            parameter.grad = mean.to(parameter.grad_dtype or parameter.dtype)

    def _used_anywhere(self) -> dict[str, bool]:
        """Which parameters have a gradient on at least one rank."""
        used = {name: parameter.grad is not None for name, parameter in self.trainable.items()}
        if not used:
            return {}
        device = next(iter(self.trainable.values())).device
        flags = torch.tensor(list(used.values()), dtype=torch.int32, device=device)
        # One small all-reduce: a sum above 0 tells every rank that some rank has a gradient for this parameter.
        self.comm.all_reduce(flags).wait()
        return {name: count > 0 for name, count in zip(used, flags.tolist(), strict=True)}
