"""`minitrain.data_parallel.overlapped` for any model: unused parameters, several dtypes, checks; and it can be freed.

A bucket is started when it is full and all buckets before it have been started, so all ranks start them in one order.
Open `data_parallel/full/replica.py` and `data_parallel/full/bucketed.py` first, and
`data_parallel/full/gradient_hooks.py` after this file.

**Source.** Li et al. 2020, "PyTorch Distributed", §3.2.3 and §4.2.
**Cost.** Time: `minitrain.costs.data_parallel.step_time`.
Also called DDP (PyTorch), wait-free backpropagation (Poseidon), `overlap_grad_reduce` (Megatron-LM), `overlap_comm`
(DeepSpeed).
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm.messages import Handle
from minitrain.data_parallel.full.bucketed import Bucket, pack
from minitrain.data_parallel.full.replica import Replica


class DataParallel(Replica):
    """Averages gradients a bucket at a time, each as soon as backward has filled it.

    A bucket takes the gradients as they are when its last one arrives; what happens to `.grad` between then and
    `synchronize()` is lost. The hooks belong to the parameters: as long as this object lives they work for any caller
    backward, also on `.module` itself.

    Attributes:
        buckets: The buckets, in the order in which they are sent.

    Raises:
        RuntimeError: In backward, when a parameter has had its gradient outside `no_sync()` and gets another before
            `synchronize()`: its bucket may have left with the first alone.

    Examples:
        >>> from minitrain.data_parallel import DataParallel
        >>> model = DataParallel(model)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        >>> cross_entropy(model(tokens), targets).backward()
        >>> model.synchronize()
        >>> optimizer.step()
    """

    def _prepare(self, bucket_megabytes: float) -> None:
        self.buckets = pack(self.trainable, bucket_megabytes, self.reduce_dtype)
        self._started: list[Handle] = []  # handles of the buckets that are on their way
        self._missing = [set(bucket.parameters) for bucket in self.buckets]  # gradients that a bucket waits for
        self._number = {name: number for number, bucket in enumerate(self.buckets) for name in bucket.parameters}

    @torch.no_grad()
    def synchronize(self) -> None:
        """Make every gradient its mean over all ranks, after the last backward of a step; see `Replica`."""
        self._begin_synchronize()
        # Not full when backward ended, as this rank did not use some parameter; others did, and wait.
        for bucket in self.buckets[len(self._started) :]:
            self._started.append(self._start(bucket))
        for bucket, handle in zip(self.buckets, self._started, strict=True):
            handle.wait()
            bucket.hand_back()
        self._started, self._missing = [], [set(bucket.parameters) for bucket in self.buckets]

    def _arrive(self, name: str, parameter: Tensor) -> None:
        """The hook: note that a gradient has arrived, and start the buckets that are now complete and next in turn."""
        super()._arrive(name, parameter)
        number = self._number[name]
        if name not in self._missing[number]:
            raise RuntimeError(
                f"{name} got a second gradient before synchronize(); run backward of all micro-batches but the last "
                "under no_sync(), and synchronize() after the last"
            )
        # After the check: a gradient that has left must not grow under `no_sync()` either.
        if self._local:
            return
        self._missing[number].remove(name)
        # Messages are matched by order alone: a rank that sent its second bucket first would add it to others' first.
        while (turn := len(self._started)) < len(self.buckets) and not self._missing[turn]:
            self._started.append(self._start(self.buckets[turn]))

    def _start(self, bucket: Bucket) -> Handle:
        """Fill a bucket with this rank's gradients, and send it."""
        for name in bucket.parameters:
            # 1/n before the sum, as DDP does: low precision then cannot overflow, and results are the same to the bit.
            bucket.put(name, self._gradient(name), 1 / self.ranks)
        # One all-reduce: every rank ends with the sum of all ranks' 1/n, and how many ranks have each gradient.
        return self.comm.all_reduce(bucket.seal())
