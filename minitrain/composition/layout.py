"""The axes of a layout, and in one place: the axes over which each parameter's gradient is summed.

**Idea.** Every rank is one point of a grid with the axes pp, dp, cp and tp; dp is cut once more, into replicas and
experts. Each technique talks along its own axis and knows nothing of the others. What goes wrong when they are combined
is always the same question: over which ranks is this gradient summed, and how many ranks hold the same element? So it
is answered once, here, from what each technique has declared about a parameter, and printed as a table.

**Source.** Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
§3, for the order of the axes (see `make_axes`); Rajbhandari et al. 2022, "DeepSpeed-MoE", §5.2, for expert parallelism
within data parallelism. Also called `DeviceMesh` with named dimensions (PyTorch), `parallel_state` with
`order="tp-cp-ep-dp-pp"` (Megatron-LM), `ParallelDims` (torchtitan), topology (DeepSpeed).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor, nn

from minitrain.comm import axes
from minitrain.comm.control import gather_objects, leave
from minitrain.comm.groups import new_group
from minitrain.composition.settings import Layout
from minitrain.mixture_of_experts.full.expert_parallel import Groups
from minitrain.tensor_parallel.full.parameter_layout import copies, is_partial, sharded_dim, shards


@dataclass(frozen=True)
class Axes:
    """This rank's groups, and its place in each."""

    layout: Layout
    grid: Int[Tensor, "pp dp cp tp"]  # all ranks, tp varying fastest, then cp
    pp: dist.ProcessGroup  # the ranks of this rank's pipeline
    dp: dist.ProcessGroup  # those that share the batch
    cp: dist.ProcessGroup  # those that share each sequence: each has some of its tokens
    dp_cp: dist.ProcessGroup  # of both, which hold what this rank holds (experts apart), and average its gradient
    tp: dist.ProcessGroup  # those that share this rank's matrices
    experts: dist.ProcessGroup  # the data-parallel ranks that hold all experts together
    replicas: dist.ProcessGroup  # the data-parallel ranks that hold the same experts
    alone: dist.ProcessGroup
    place: dict[str, int]  # along pp, dp, cp, tp, experts, replicas, and along dp and cp together ("dp·cp")

    @property
    def data(self) -> Groups:
        """The groups among which chapter 12 spreads experts."""
        return Groups(self.dp, self.experts, self.replicas)

    def close(self) -> None:
        """Give the groups back, for programs that go on to another layout. All ranks call it."""
        leave((self.pp, self.dp, self.cp, self.dp_cp, self.tp, self.experts, self.replicas, self.alone))


def make_axes(layout: Layout) -> Axes:
    """Arrange all ranks as the layout says. Every rank must call it, with the same layout.

    Tensor parallelism sends whole activations several times per layer and waits for them, so its ranks are neighbors,
    within a machine. Context parallelism sends keys and values in every layer, and can do it while attention computes:
    its ranks come next. Data parallelism sends each gradient once per step, and can do it while backward runs. A
    pipeline sends one activation for each micro-batch and stage boundary, to neighbors only, so it is outermost,
    between machines.

    Raises:
        ValueError: The number of ranks is not the layout's.
    """
    apart = layout.ep > 1  # experts have axes of their own
    data = {"replicas": layout.dp // layout.ep, "experts": layout.ep} if apart else {"dp": layout.dp}
    sizes = {"pp": layout.pp, **data, "cp": layout.cp, "tp": layout.tp}
    # Along an axis of size 1 each rank is alone: no group of its own, since on GPUs each group costs time and memory.
    mesh = axes(**{name: size for name, size in sizes.items() if size > 1}, alone=1)
    grid = mesh.mesh.reshape(layout.pp, layout.dp, layout.cp, layout.tp)
    groups = {name: mesh[name if size > 1 else "alone"].get_group() for name, size in sizes.items()}
    place = {name: mesh.get_local_rank(name) if size > 1 else 0 for name, size in sizes.items()}
    # The ranks that hold the same weights: those along dp and cp together, at one place along pp and tp.
    lines = grid.permute(0, 3, 1, 2).flatten(0, 1).flatten(1).tolist()  # [pp · tp, dp · cp]
    if apart:  # without cp, which is refused together with experts
        groups["dp"] = _own(lines, "mesh_dp")
        place["dp"] = place["replicas"] * layout.ep + place["experts"]
    else:
        for name in ("dp", "cp"):
            if 1 < sizes[name] == grid.numel():  # its own group, not everyone's: loss and norm are summed over that
                groups[name] = new_group(grid.flatten().tolist(), description=f"mesh_{name}")
        groups |= {"replicas": groups["dp"], "experts": mesh["alone"].get_group()}
        place |= {"replicas": place["dp"], "experts": 0}
    # Where there is cp, a group of its own also for dp = 1: gradients may travel while attention uses that of cp.
    groups["dp_cp"] = _own(lines, "mesh_dp_cp") if layout.cp > 1 else groups["dp"]
    place["dp·cp"] = place["dp"] * layout.cp + place["cp"]
    # Ranks meet: one that gave its groups back at once would break the connections of one that is still making them.
    gather_objects(None)
    return Axes(layout, grid, alone=mesh["alone"].get_group(), place=place, **groups)


def _own(lines: list[list[int]], description: str) -> dist.ProcessGroup:
    """Of one group for each of these lists of ranks, this rank's. Every rank makes every group."""
    # torch has every rank make every group, in the same order, also those that it is not in.
    made = {tuple(ranks): new_group(ranks, description=description) for ranks in lines}
    return next(group for ranks, group in made.items() if dist.get_rank() in ranks)


@dataclass(frozen=True)
class Spread:
    """How one parameter is laid out over the ranks, and what follows.

    Attributes:
        name: Its name on one device.
        held: The axes along which ranks step the same elements, with how many ranks do.
        cut: The axes along which ranks step different elements.
        summed: The axes over which its gradient is summed, in this order.
        first: Whether this rank is the first of those that step these elements. The first counts them in a norm, and
            writes them to a checkpoint: everyone else's are copies.
    """

    name: str
    held: dict[str, int]
    cut: tuple[str, ...]
    summed: tuple[str, ...]
    first: bool


def spread_of(name: str, parameter: nn.Parameter, axes: Axes, expert: bool, stages: Sequence[int] = ()) -> Spread:
    """How a parameter is laid out over the ranks, by its name on one device.

    Args:
        expert: Whether it is an expert's, of which only replicas hold the same.
        stages: The places along pp that hold a copy, rising, where there are several (a tied embedding).
    """
    layout = axes.layout
    shared = ("dp·cp" if layout.cp > 1 else "dp"), layout.dp * layout.cp  # all weights, whatever tokens a rank has
    data, sharers = ("replicas", layout.dp // layout.ep) if expert else shared
    holders = {"pp": max(1, len(stages)), data: 1 if layout.zero else sharers, "tp": copies(parameter, layout.tp)}
    several = {
        "pp": layout.pp > 1 and len(stages) < 2,
        "experts": expert and layout.ep > 1,
        data: layout.zero > 0 and sharers > 1,  # ZeRO: each has a shard
        "tp": sharded_dim(parameter) is not None and shards(parameter, layout.tp) > 1,
    }
    # First the stages' copies, so that data parallelism averages what is complete; then data; and then the parts of
    # tensor-parallel ranks, since a sum of means is the mean of sums.
    sums = {"pp": len(stages) > 1, data: sharers > 1, "tp": is_partial(parameter) and holders["tp"] > 1}
    first = axes.place["tp"] % holders["tp"] == 0
    # Where ZeRO divides the line, each rank steps elements of its own.
    first = first and (holders[data] == 1 or axes.place[data] == 0)
    first = first and (len(stages) < 2 or axes.place["pp"] == stages[0])
    return Spread(
        name,
        {axis: count for axis, count in holders.items() if count > 1},
        tuple(axis for axis, cut in several.items() if cut),
        tuple(axis for axis, summed in sums.items() if summed),
        first,
    )


def table(spreads: Iterable[Spread]) -> str:
    """The table of gradients: for each parameter, who holds the same elements, who others, and the axes of its sum.

    Parameters, of one rank or several, that are alike in all layers and experts share a line.
    """
    lines: dict[tuple[str, ...], set[int]] = {}
    # Several ranks may have the same parameter.
    for spread in {spread.name: spread for spread in spreads}.values():
        head, _, rest = spread.name.partition("blocks.")
        number, _, name = rest.partition(".")
        name = re.sub(r"experts\.\d+", "experts.*", f"blocks.#.{name}" if rest else head)
        held = " · ".join(f"{axis} {count}" for axis, count in spread.held.items())
        cells = (name, held or "–", ", ".join(spread.cut) or "–", ", then ".join(spread.summed) or "–")
        lines.setdefault(cells, set()).add(int(number or 0))
    rows = [("parameter", "same elements on", "others along", "gradient summed over (dp: mean)")]
    for (name, *cells), numbers in lines.items():
        rows.append((name.replace("#", _ranges(sorted(numbers))), *cells))  # type: ignore[arg-type]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _ranges(numbers: list[int]) -> str:
    """0-3 for neighbors, 1,3,5 for others."""
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
