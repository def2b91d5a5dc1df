"""Three ways to put rows through their experts: a loop, a grouped product, and a batch padded to equal lengths.

**Idea.** The loop is the definition, and starts E times as many small products as a dense layer starts large ones. Rows
that are sorted by expert allow one call that multiplies each expert's rows by its own matrix. Padding gives every
expert as many places as the fullest one needs, and an ordinary batched product does the rest.

**Source.** Padded batches: Lepikhin et al. 2020, "GShard", §3.1, algorithm 2. Sorted rows: Gale et al. 2022,
"MegaBlocks", §4; Hwang et al. 2022, "Tutel", §4, for dispatch without masks.
**Waits for the GPU** once in the loop, to read how many rows each expert has, once with padding, to read the largest of
these numbers, and never in a grouped product that fits the GPU.
**Cost.** `minitrain.costs.mixture_of_experts.expert_flops`, whatever the number of experts; padded batches multiply
E · (rows of the fullest expert), empty places too. Also called grouped GEMM, "dropless" computation; `GroupedMLP` and
`SequentialMLP` in Megatron-LM; expert-batched `einsum` in Mesh-TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from minitrain.mixture_of_experts.full.routing import counted
from minitrain.models.gate import gated
from minitrain.models.gpt import MLP

Way = Literal["loop", "grouped", "padded"]
Compute = Callable[[Sequence[nn.Module], Tensor, Tensor], Tensor]


def loop(
    experts: Sequence[nn.Module], rows: Float[Tensor, "routes hidden"], expert: Int[Tensor, " routes"]
) -> Float[Tensor, "routes hidden"]:
    """One expert after the other, each on its own rows, in any order. Any module works as an expert.

    `expert` has for each row the expert that it goes through.
    """
    y = torch.zeros_like(rows)
    # The loop waits for the GPU here: on the CPU it must know where each expert's rows end.
    counts = counted(expert, len(experts)).tolist()
    # Stable, so that an expert adds up its rows in the order of tokens in every run.
    for mine, module in zip(expert.argsort(stable=True).split(counts), experts, strict=True):
        part = rows.index_select(0, mine)[None]  # [1, rows, hidden], as a feed-forward layer takes it
        # Even without rows: its parameters then have a gradient of zeros, as in the other two ways.
        y.index_add_(0, mine, module(part)[0].to(y.dtype))
    return y


def grouped(
    experts: Sequence[nn.Module], rows: Float[Tensor, "routes hidden"], expert: Int[Tensor, " routes"]
) -> Float[Tensor, "routes hidden"]:
    """Rows sorted by expert, and one product over all of them. Experts are `models.gpt.MLP`; else as `loop`."""
    order = expert.argsort(stable=True)
    counts = counted(expert, len(experts))
    sorted_rows, slot = rows.index_select(0, order), order.argsort()
    # Only the kernel for 16 bits wants this room.
    if rows.is_cuda and rows.element_size() == 2:
        sorted_rows, slot, counts = with_room(sorted_rows, slot, counts)
    y = mlps(experts, sorted_rows, lambda x, weight, bias: grouped_linear(x, weight, bias, counts))
    return y.index_select(0, slot)


def with_room(
    x: Float[Tensor, "routes inputs"], slot: Int[Tensor, " routes"], counts: Int[Tensor, " experts"]
) -> tuple[Float[Tensor, "rows inputs"], Int[Tensor, " routes"], Int[Tensor, " experts"]]:
    """Rows of zeros between the experts, so that each has a multiple of 8 rows, and none has no rows.

    x is sorted by expert, `slot` has for each route its place in x, and `counts` how many rows each expert has.
    """
    # A weight's gradient is a product over the expert's rows, which on an H100 must begin at multiples of 16 bytes; and
    # an expert without rows has made the kernel hang (pytorch issue 152668).
    room = (counts.clamp(min=1) + 7) // 8 * 8
    before = (room - counts).cumsum(0) - (room - counts)  # rows of zeros before those of each expert
    place = torch.arange(len(x), device=x.device) + before.repeat_interleave(counts, output_size=len(x))
    # The most that can be needed. The CPU knows it without the counts, and the last expert has what is left.
    rows = -(-len(x) // 8) * 8 + 8 * len(counts)
    room[-1] += rows - room.sum()
    return x.new_zeros(rows, x.shape[1]).index_copy(0, place, x), place[slot], room


def padded(
    experts: Sequence[nn.Module], rows: Float[Tensor, "routes hidden"], expert: Int[Tensor, " routes"]
) -> Float[Tensor, "routes hidden"]:
    """A batch of as many places for each expert as the fullest one needs. Experts must be `models.gpt.MLP`.

    A router with a capacity bounds that number by groups · capacity. Empty places are multiplied too, but their results
    are never read. Otherwise as `loop`.
    """
    counts = counted(expert, len(experts))
    places = int(counts.max()) if len(rows) else 1
    order = expert.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device) - starts[expert[order]]
    slot = expert * places + place
    # Empty places are multiplied, too, so they must not hold a NaN.
    batch = rows.new_zeros(len(experts) * places, rows.shape[1]).index_copy(0, slot, rows)

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)

    return mlps(experts, batch.view(len(experts), places, -1), linear).flatten(0, 1).index_select(0, slot)


def mlps(experts: Sequence[Any], x: Tensor, linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Tensor:
    """The forward of `models.gpt.MLP`, of all experts at once; `linear` multiplies by weights that are stacked."""
    wide = linear(x, *stacked(experts, "up"))
    if experts[0].gate is None:
        wide = F.gelu(wide, approximate="tanh")
    else:
        wide = gated(linear(x, *stacked(experts, "gate")), wide)
    return linear(wide, *stacked(experts, "down"))


WAYS: dict[Way, Compute] = {"loop": loop, "grouped": grouped, "padded": padded}


def grouped_linear(
    x: Float[Tensor, "routes inputs"],
    weight: Float[Tensor, "experts outputs inputs"],
    bias: Float[Tensor, "experts outputs"] | None,
    counts: Int[Tensor, " experts"],
) -> Float[Tensor, "routes outputs"]:
    """x sorted by expert; the first counts[0] rows times expert 0's weight, and so on."""
    if fits_grouped_product(x, weight):
        y = F.grouped_mm(x, weight.mT, offs=counts.cumsum(0, dtype=torch.int32))
    else:
        parts = x.split(counts.tolist())
        y = torch.cat([part @ matrix.t() for part, matrix in zip(parts, weight, strict=True)])
    # With `output_size` it need not wait for the GPU.
    return y if bias is None else y + bias.repeat_interleave(counts, dim=0, output_size=len(x))


def fits_grouped_product(x: Float[Tensor, "routes inputs"], weight: Float[Tensor, "experts outputs inputs"]) -> bool:
    """Whether torch's grouped product takes these: no float64, and rows of a multiple of 16 bytes."""
    aligned = all(size * x.element_size() % 16 == 0 for size in weight.shape[1:])
    return aligned and x.dtype in (torch.float32, torch.bfloat16, torch.float16)


def check_stackable(experts: Sequence[nn.Module], way: Way) -> None:
    """Refuse experts that only a loop can compute: no `models.gpt.MLP`, or of different sizes."""
    for number, expert in enumerate(experts):
        if not isinstance(expert, MLP):
            raise ValueError(
                f"compute={way!r} multiplies by the weights of models.gpt.MLP, but expert {number} is a "
                f"{type(expert).__name__}; use compute='loop'"
            )
        if expert.up.weight.shape != experts[0].up.weight.shape:  # type: ignore[union-attr]
            raise ValueError(f"compute={way!r} needs experts of one size, but expert {number} differs; use 'loop'")


def stacked(experts: Sequence[nn.Module], name: str) -> tuple[Tensor, Tensor | None]:
    """Weights [experts, outputs, inputs] and biases [experts, outputs], if there are some, of the layer `name`."""
    layers = [getattr(expert, name) for expert in experts]
    weight = _Stack.apply(*(layer.weight for layer in layers))
    if layers[0].bias is None:
        return weight, None
    bias = _Stack.apply(*(layer.bias for layer in layers))
    if name == "down" and not getattr(experts[0], "adds_bias", True):
        bias = bias - bias.detach()  # zeros with a gradient: another tensor-parallel rank adds it
    return weight, bias


@torch.no_grad()
def lay_side_by_side(experts: Sequence[nn.Module]) -> None:
    """Move the parameters of like-named layers into one storage, in which each is a view, so that stacking is free.

    Parameters stay the same objects with the same values. Where something moves one of them later, stacking copies.
    """
    for parameters in zip(*(expert.parameters() for expert in experts), strict=True):
        if not _adjoining(parameters):
            for parameter, place in zip(parameters, torch.stack(parameters), strict=True):
                parameter.data = place


def _adjoining(tensors: Sequence[Tensor]) -> bool:
    first, size = tensors[0], tensors[0].numel()
    return all(
        tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and tensor.storage_offset() == first.storage_offset() + number * size
        and tensor.is_contiguous()
        for number, tensor in enumerate(tensors)
    )


class _Stack(torch.autograd.Function):
    """`torch.stack`, without a copy where the tensors lie side by side; and none of the gradient."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        first = tensors[0].detach()
        if not _adjoining(tensors):
            return torch.stack(tensors)
        # It reaches past the first parameter into its neighbors: no operation that autograd could differentiate.
        return first.as_strided((len(tensors), *first.shape), (first.numel(), *first.stride()))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients[0].unbind(0)
