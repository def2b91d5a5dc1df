"""Named axes of ranks: the same processes seen as a grid, so that each kind of parallelism talks along its own axis.

Also called process grid (MPI), `ProcessTopology` (DeepSpeed).
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from minitrain.comm.groups import limited


def axes(**sizes: int) -> DeviceMesh:
    """Arrange all ranks as a grid with named axes, the last axis running over neighboring ranks.

    `axes(dp=2, tp=4)["tp"].get_group()` is this rank's tensor-parallel group. Every rank calls it with the same sizes.

    Args:
        **sizes: The name and size of each axis, outermost first.

    Raises:
        ValueError: The sizes do not multiply to the world size, or one of them is below 1.

    Examples:
        >>> from minitrain.comm import axes
        >>> mesh = axes(dp=2, tp=2)
        >>> dp, tp = (mesh[name].get_group() for name in ("dp", "tp"))
    """
    ranks = dist.get_world_size()
    named = ", ".join(f"{name}={size}" for name, size in sizes.items())
    if not sizes or min(sizes.values()) < 1:
        raise ValueError(f"axes({named}): every axis needs a size of at least 1")
    if math.prod(sizes.values()) != ranks:
        product = " × ".join(map(str, sizes.values()))
        raise ValueError(
            f"axes({named}): {product} = {math.prod(sizes.values())} does not match the {ranks} ranks; "
            "use sizes whose product is the number of ranks"
        )
    nccl = dist.get_backend() == "nccl"
    # For an axis of all ranks torch takes everyone's group, but not with gloo on a machine that has a GPU.
    made = [name for name, size in sizes.items() if size < ranks or (not nccl and torch.cuda.is_available())]
    return init_device_mesh(
        "cuda" if nccl else "cpu",
        tuple(sizes.values()),
        mesh_dim_names=tuple(sizes),
        backend_override={name: limited() for name in made},
    )
