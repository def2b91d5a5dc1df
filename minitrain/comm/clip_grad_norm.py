"""Clipping by one norm of all gradients, in whatever way parameters are laid out over the ranks.

**Idea.** The square of the norm is a sum over the elements of the whole model, and each must count once. Along an axis
of ranks a parameter is sharded, and each rank counts its own elements, or replicated, and the first rank counts for all
that hold the same ones. So each parameter is asked along which axes it is sharded. The squares are then added up along
one axis after another, and all ranks scale by the same bits: a rank that clipped by a norm of its own would let copies
drift apart.
**Source.** Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", §3.2, for clipping;
Megatron-LM's `param_is_not_shared` and `param_is_not_tensor_parallel_duplicate`, for counting once.
**Sent.** Along each axis one all-reduce of one float64.
Also called global norm; `clip_grad_norm` (Megatron-LM); torch's `clip_grad_norm_` on DTensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float64
from torch import Tensor, nn

from minitrain.comm.comm import Comm

Axes = dict[tuple[int, ...], tuple[Comm, bool]]
"""Along which ranks a parameter is sharded; and whether this rank is the first of them with these elements."""


class Piece(NamedTuple):
    """What a rank has of the final gradient of a parameter."""

    parameter: Tensor  # names the piece: of several with one parameter, the first counts
    gradient: Tensor | None  # its elements on this rank, perhaps none; None where there is no gradient
    axes: Axes  # those along which ranks have other elements, the outer ones last


def axis(comm: Comm, first: bool = True) -> Axes:
    """The axis of these ranks. `first`: this rank is the first of those along it that hold the same elements."""
    return {tuple(dist.get_process_group_ranks(comm.group or dist.group.WORLD)): (comm.unchecked, first)}


def shard_along(parameter: Tensor, comm: Comm, first: bool = True) -> None:
    """Declare that ranks along an axis hold different elements of a parameter; see `axis`."""
    vars(parameter).setdefault("sharded_along", {}).update(axis(comm, first))


def axes_of(parameter: Tensor) -> Axes:
    """The axes that have been declared."""
    return getattr(parameter, "sharded_along", {})


def clip_through(part: Any, parameters: Iterable[Tensor]) -> None:
    """Declare that only `part` knows the norm of these parameters' gradients: refuse to clip them in another way."""
    for parameter in parameters:
        vars(parameter)["clipped_through"] = weakref.ref(part)


def pieces(part: Any) -> Iterator[Piece]:
    """What this rank has of all final gradients of a part, as of `clip_grad_norm`; a parameter may come twice."""
    if hasattr(part, "gradient_pieces"):
        yield from part.gradient_pieces()
    elif isinstance(part, nn.Module):
        yield from pieces(part.parameters(recurse=False))
        for child in part.children():
            yield from pieces(child)
    else:
        for parameter in part:
            yield Piece(parameter, parameter.grad, axes_of(parameter))


def sum_of_squares(gradients: Sequence[Tensor], device: torch.device) -> Float64[Tensor, ""]:
    """In float64, in which the square of no float32 overflows; without copies in float64."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for its in _by_device(gradients).values():  # offloaded ones are on the host: one number crosses
        total += torch.stack(torch._foreach_norm(its, dtype=torch.float64)).square().sum().to(device)
    return total


@torch.no_grad()
def gradient_norm(part: Any) -> Float64[Tensor, ""]:
    """The Euclidean norm of the gradients of the whole model, equal on all ranks; as `clip_grad_norm`."""
    return _norm(_each_once(part))


@torch.no_grad()
def clip_grad_norm(part: Any, max_norm: float) -> Float64[Tensor, ""]:
    """Scale all gradients, in place, so that their norm is at most `max_norm`; as torch's `clip_grad_norm_`.

    Gradients must be final: after `synchronize()` of data parallelism or of ZeRO, after a pipeline's `step()`, and
    after `sum_partial_gradients`. All ranks that hold the model together call it.

    Args:
        part: What this rank trains: a `Pipeline`, a stage of ZeRO, any other module, or its parameters. One that is
            listed twice counts once; those without a gradient count nothing.
        max_norm: The largest norm that is left as it is.

    Returns:
        The norm before clipping, in float64, equal on all ranks.

    Raises:
        ValueError: `max_norm` is not positive; there is no parameter; the parameters are in a pipeline or a stage of
            ZeRO, which has to be given itself, or in a small form's layer; axes of ranks share more than this rank.

    Examples:
        >>> from minitrain.composition import clip_grad_norm
        >>> from minitrain.data_parallel import DataParallel
        >>> model = DataParallel(model)
        >>> cross_entropy(model(tokens), targets).backward()
        >>> model.synchronize()
        >>> norm = clip_grad_norm(model, 1.0)
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm={max_norm} must be positive; 1.0 is usual, float('inf') leaves gradients alone")
    found = _each_once(part)
    norm = _norm(found)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # stays on the device: no waiting for a GPU to decide
    for device, its in _by_device(each.gradient for each in found if each.gradient is not None).items():
        torch._foreach_mul_(its, scale.to(device))
    return norm


def _by_device(gradients: Iterable[Tensor]) -> dict[torch.device, list[Tensor]]:
    found: dict[torch.device, list[Tensor]] = {}
    for gradient in gradients:
        found.setdefault(gradient.device, []).append(gradient)
    return found


def _each_once(part: Any) -> list[Piece]:
    part = list(part) if isinstance(part, Iterable) and not isinstance(part, nn.Module) else part
    within = part.modules() if isinstance(part, nn.Module) else [part]
    allowed, found = {id(each) for each in within}, dict[int, Piece]()
    for piece in pieces(part):
        holder = getattr(piece.parameter, "clipped_through", lambda: None)()
        if holder is not None and id(holder) not in allowed:
            raise ValueError(
                f"the gradients of these parameters are in a {type(holder).__name__}, which alone knows their norm; "
                "give it itself, not its module or parameters"
            )
        if hasattr(piece.parameter, "tensor_parallel_dim") and not hasattr(piece.parameter, "sharded_along"):
            raise ValueError(
                "a parameter is of a small form's tensor-parallel layer, which does not say over which ranks; use the "
                "layers of minitrain.tensor_parallel, or the small form's clip_grad_norm(parameters, max_norm, group)"
            )
        found.setdefault(id(piece.parameter), piece)
    if not found:
        raise ValueError("parameters is empty; give those of a module")
    return list(found.values())


def _norm(found: Sequence[Piece]) -> Float64[Tensor, ""]:
    axes: Axes = {}
    for piece in found:
        # An axis that is outside of others stays behind them.
        axes = {ranks: each for ranks, each in piece.axes.items() if ranks not in axes} | axes
    for one in axes:
        for other in axes:
            if one != other and len({*one} & {*other}) > 1:
                raise ValueError(
                    f"parameters are sharded over ranks {[*one]} and others over ranks {[*other]}, which are no two "
                    "axes of a grid; use groups that share one rank, as minitrain.comm.axes makes them"
                )
    counted = [
        piece.gradient
        for piece in found
        if piece.gradient is not None
        # Along each axis this rank is the first that holds these elements: of a replicated parameter, the first of all.
        and all(piece.axes[ranks][1] if ranks in piece.axes else comm.rank == 0 for ranks, (comm, _) in axes.items())
    ]
    square = sum_of_squares(counted, found[0].parameter.device)
    for comm, _ in axes.values():
        # One number: the sum of what the ranks along this axis have counted.
        comm.all_reduce(square).wait()
    return square.sqrt()
