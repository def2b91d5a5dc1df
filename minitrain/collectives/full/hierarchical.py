"""The full form of `minitrain.collectives.hierarchical` adds the other verbs, on a mesh in place of groups, and checks.

Ranks form a 2-D mesh, `axes(node=N, local=L)`: rank r is place r mod L of node r div L. Every phase is a ring of its
own, and all L network links of a node work at once.

**Source.** Besides Mikami et al. 2018: Jia et al. 2018, "Highly scalable deep learning training system with
mixed-precision", where one rank of each node talks between the nodes.
**Cost.** Exactly: `minitrain.costs.communication.hierarchical_all_reduce`; time: `hierarchical_all_reduce_time`. A rank
holds up to three receive buffers of 1/L of the tensor; reduce-scatter and all-gather also a packed copy of it. A flat
ring over all n ranks sends up to twice as much out of a node, all of it over one of the links, for which it waits in
every step: 2(n−1)(α' + β'S/n).
Also called two-level or 2-D all-reduce; NCCL's rings per NIC have the same effect.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from minitrain.collectives.full import ring
from minitrain.comm.chunks import Chunks, flat_line, same_root
from minitrain.comm.control import checking, compare, contiguous, description, gather_objects, same_call
from minitrain.comm.messages import Handle


def all_reduce(
    tensor: Shaped[Tensor, "*shape"], group: DeviceMesh | None = None, *, check: bool | None = None
) -> Handle:
    """Add `tensor` over all ranks of a mesh, in place; every rank ends with the sum, to the same bits.

    Args:
        tensor: Contiguous, of any shape and any dtype that can be added; the same shape and dtype on all ranks.
        group: The 2-D mesh of the ranks that talk, nodes outside: `axes(node=N, local=L)`.
        check: Compare shape and dtype across ranks first; None: in demos and notebooks only.

    Raises:
        ValueError: `group` is no 2-D mesh, or `tensor` is not contiguous; with checking also, on every rank alike, if
            shape, dtype or contiguity differ between ranks.
    """
    grid = Grid("all_reduce", group)
    shares = grid.flat_view("all_reduce", tensor, check).tensor_split(grid.local)
    # Over fast links: this place's share, summed over the node.
    own = ring.reduce_scatter_chunks(shares, grid.within)
    parts = own.tensor_split(grid.nodes)
    # Over slow links, 1/L of the tensor: a part of the share, summed over nodes; then its other parts.
    ring.reduce_scatter_chunks(parts, grid.across)
    ring.all_gather_chunks(parts, grid.across)
    # Over fast links: the shares of the other places.
    ring.all_gather_chunks(shares, grid.within)
    return Handle((), tensor)


def reduce_scatter(
    tensor: Shaped[Tensor, "*shape"], group: DeviceMesh | None = None, *, check: bool | None = None
) -> Handle:
    """Add `tensor` over all ranks; rank r of the mesh, counted row by row, ends with the sum in chunk r.

    The other chunks stay as they were. `wait()` gives that chunk, a flat view of `tensor`. Arguments and errors as in
    `all_reduce`.
    """
    grid = Grid("reduce_scatter", group)
    chunks = grid.flat_view("reduce_scatter", tensor, check).tensor_split(grid.ranks)
    # Rank r must end with chunk r. So the share of each place is the chunks that its column of ranks will need;
    # these are not next to each other.
    columns = [torch.cat(grid.column(chunks, place)) for place in range(grid.local)]  # packed: a copy
    # Over fast links: all chunks of this place, summed over the node.
    own = ring.reduce_scatter_chunks(columns, grid.within)
    sizes = [len(chunk) for chunk in grid.column(chunks, grid.place)]
    mine = chunks[grid.rank]
    # Over slow links: this rank's chunk, summed over all nodes.
    mine.copy_(ring.reduce_scatter_chunks(own.split(sizes), grid.across))
    return Handle((), mine)


def all_gather(
    tensor: Shaped[Tensor, "*shape"], group: DeviceMesh | None = None, *, check: bool | None = None
) -> Handle:
    """Collect the chunks: rank r brings chunk r of `tensor`, and all end with all chunks.

    What the other chunks held before is overwritten. Arguments and errors as in `all_reduce`.
    """
    grid = Grid("all_gather", group)
    chunks = grid.flat_view("all_gather", tensor, check).tensor_split(grid.ranks)
    # Over slow links, straight into their place: the chunks that this place brings on the other nodes.
    ring.all_gather_chunks(grid.column(chunks, grid.place), grid.across)
    columns = [torch.cat(grid.column(chunks, place)) for place in range(grid.local)]  # packed: a copy
    ring.all_gather_chunks(columns, grid.within)  # over fast links: what the other places have gathered
    for place, packed in enumerate(columns):
        own = grid.column(chunks, place)
        for chunk, part in zip(own, packed.split([len(chunk) for chunk in own]), strict=True):
            chunk.copy_(part)
    return Handle((), tensor)


def broadcast(
    tensor: Shaped[Tensor, "*shape"], source: int = 0, group: DeviceMesh | None = None, *, check: bool | None = None
) -> Handle:
    """Copy `tensor` from rank `source` of the mesh to all others: once to each node, then within each.

    Args:
        tensor: Contiguous, of any shape; the same shape and dtype on all ranks.
        source: The rank of the mesh, counted row by row, whose values all end with.
        group: The 2-D mesh, as in `all_reduce`.
        check: Compare shape, dtype and source across ranks first; None: in demos and notebooks only.

    Raises:
        ValueError: `source` is no rank of the mesh; else as in `all_reduce`.
    """
    grid = Grid("broadcast", group)
    grid.flat_view("broadcast", tensor, check)
    same_root("broadcast", "source", grid.gather(source) if checking(check) else [source], grid.ranks)
    node, place = divmod(source, grid.local)
    if grid.place == place:
        ring.broadcast(tensor, node, grid.across, check=False)  # over slow links: one copy to each node
    return ring.broadcast(tensor, place, grid.within, check=False)  # over fast links, from the rank that has it


class Grid:
    """This rank's place in a mesh of nodes × ranks of a node.

    Attributes:
        nodes: Number of nodes N.
        local: Number of ranks of each node, L.
        ranks: N · L.
        node: This rank's node.
        place: This rank within its node.
        rank: This rank within the mesh, counted row by row: node · L + place.
        across: The group of the ranks at the same place of all nodes.
        within: The group of the ranks of this node.
    """

    def __init__(self, verb: str, mesh: DeviceMesh | None):
        if not isinstance(mesh, DeviceMesh) or mesh.ndim != 2:
            found = f"a mesh with {mesh.ndim} axes" if isinstance(mesh, DeviceMesh) else mesh
            raise ValueError(f"{verb}: group={found} is no mesh with two axes; use axes(node=…, local=…)")
        self.nodes, self.local = mesh.shape
        self.ranks = self.nodes * self.local
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise ValueError(f"{verb}: this rank ({dist.get_rank()}) is not in the mesh; only its members may call")
        self.node, self.place = coordinate
        self.rank = self.node * self.local + self.place
        self.across, self.within = mesh.get_group(0), mesh.get_group(1)

    def column(self, chunks: Chunks, place: int) -> tuple[Tensor, ...]:
        """The chunks of the ranks at `place` of each node."""
        return tuple(chunks[place :: self.local])

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the mesh's order, on every rank, by control messages."""
        node = gather_objects(value, self.within)
        return [value for values in gather_objects(node, self.across) for value in values]

    def flat_view(self, verb: str, tensor: Shaped[Tensor, "*shape"], check: bool | None) -> Shaped[Tensor, " elements"]:
        """`minitrain.comm.chunks.flat_view` for a mesh."""
        if checking(check):
            everyone = self.gather((verb, description(tensor)))
            same_call([call for call, _ in everyone])
            compare(verb, tensor, [described for _, described in everyone])
        contiguous(verb, tensor)
        return flat_line(tensor)


# Virtual links: within a node 1.9 µs and 34 GB/s, across nodes 16 times the latency and an eighth of the bandwidth.
FAST = (2.0**-19, 2.0**-35)
SLOW = (2.0**-15, 2.0**-32)
