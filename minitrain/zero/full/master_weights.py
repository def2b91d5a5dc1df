"""Mixed precision: the master copy of a shard, in float32, which the optimizer steps while parameters have 16 bits.

**Idea.** An update is often too small to change a weight of 16 bits. So the optimizer steps a copy with more bits, and
each new value is rounded into the parameter. A rank has the master of its own shard only.
**Source.** Micikevicius et al. 2018, "Mixed Precision Training", §3.1.
In FSDP2 the sharded parameters are the masters, and `MixedPrecisionPolicy` has the compute dtype; in DeepSpeed
they are `fp32_groups_flat`.
"""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from minitrain.zero.full.flat_shards import FlatShard


def make_master(line: FlatShard, exact: Shaped[Tensor, " shard"], compute_dtype: torch.dtype | None) -> nn.Parameter:
    """What the optimizer steps: the shard itself, if it has enough bits, else a copy in float32 at least.

    Args:
        line: Its shard has the compute dtype.
        exact: The shard's values as the module had them, before they were rounded.
        compute_dtype: What parameters are held in; None: as the module has them.
    """
    dtype = exact.dtype
    if compute_dtype is not None and dtype.is_floating_point:
        dtype = torch.promote_types(dtype, torch.float32)
    # `copy`: `exact` is a view of the whole line in full precision, which would otherwise stay in memory.
    return nn.Parameter(line.shard if dtype == line.shard.dtype else exact.to(dtype, copy=True))


def copy_master_to_shard(line: FlatShard) -> None:
    """After a step: round the master into the shard, if they are not the same memory."""
    if line.master is not None and line.master.data_ptr() != line.shard.data_ptr():
        line.shard.copy_(line.master)


def copy_shard_to_master(line: FlatShard) -> None:
    """After parameters were loaded: copy them to the master, with all their bits."""
    if line.master is not None and line.master.data_ptr() != line.shard.data_ptr():
        line.master.copy_(line.shard)
