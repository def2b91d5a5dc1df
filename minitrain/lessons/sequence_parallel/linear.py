"""The demo of `linear`: two layers with a GELU between them, on one device and between sequence shards."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.collectives.full import native, ring
from minitrain.comm import Ledger, SavedActivations, World
from minitrain.comm.comm import Comm
from minitrain.comm.messages import Handle
from minitrain.costs.communication import ring_all_gather, ring_reduce_scatter
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.sequence_parallel import small
from minitrain.lessons.sequence_parallel.common import OURS, PAPER, RING, own
from minitrain.lessons.tensor_parallel.common import distance
from minitrain.sequence_parallel.full import linear
from minitrain.tensor_parallel.full.linear import ColumnParallelLinear
from minitrain.tensor_parallel.full.parameter_layout import sum_partial_gradients
from minitrain.tensor_parallel.parallelize import piece_of


class UnderWay(TorchDispatchMode):
    """Counts the matrix products that are computed while a collective is under way.

    It is also a set of collectives, those of `native`, so it sees when each is started and when it is waited for.

    Attributes:
        products: Their number so far, by the collective that was under way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.under_way = {"all_gather": 0, "reduce_scatter": 0}
        self.products = dict(self.under_way)

    all_reduce, broadcast = staticmethod(native.all_reduce), staticmethod(native.broadcast)

    def all_gather(self, tensor: Tensor, group: dist.ProcessGroup | None, *, check: bool | None = None) -> Handle:
        return self._watch("all_gather", native.all_gather(tensor, group, check=check), tensor)

    def reduce_scatter(self, tensor: Tensor, group: dist.ProcessGroup | None, *, check: bool | None = None) -> Handle:
        mine = tensor.detach().view(-1).tensor_split(dist.get_world_size(group))[dist.get_rank(group)]
        return self._watch("reduce_scatter", native.reduce_scatter(tensor, group, check=check), mine)

    def _watch(self, verb: str, started: Handle, result: Tensor) -> Handle:
        def arrived() -> None:
            started.wait()
            self.under_way[verb] -= 1

        self.under_way[verb] += 1
        return Handle((), result, arrived)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            for verb, travelling in self.under_way.items():
                self.products[verb] += bool(travelling)
        return func(*args, **(kwargs or {}))


def two_layers(world: World, batch: int, shard: int, width: int) -> list[Claim]:
    """Claims on a column-parallel layer, GELU and a row-parallel one, between shards, in both forms and both ways."""
    hidden, seq = width * world.size, shard * world.size
    whole, x, grad_y = _two_layers_of_one_device(world, batch, seq, hidden)
    y, grad_x, *gradients = _results(whole, x, grad_y)
    size = (batch * seq * hidden, 4, world.size, world.rank)
    gathered, scattered = ring_all_gather(*size), ring_reduce_scatter(*size)
    of_small_form, keeps, near = small.two_layers(world, batch, shard, width)
    sent, kept, made, apart = {}, {}, {}, {"small form": near}
    for way, keep in OURS.items():
        saved = 0
        for collectives in (native, ring):
            model = between_shards(copy.deepcopy(whole).float(), keep, collectives)
            mine = own(world, x).float().requires_grad_()
            with Ledger() as forward, SavedActivations(model) as activations:
                image = model(mine)
            with Ledger() as backward:
                image.backward(own(world, grad_y).float())
            saved = activations.bytes
        traffic = gathered + scattered
        sent[f"{way}, forward"] = Claim("", "2(t−1)/t · S", traffic.bytes, forward.sent, "B", RING)
        formula, traffic = ("2(t−1)/t · S", traffic) if keep else ("3(t−1)/t · S", traffic + gathered)
        sent[f"{way}, backward"] = Claim("", formula, traffic.bytes, backward.sent, "B", RING)
        tokens, wide = batch * seq, 4 * hidden // world.size
        x_kept = tokens * hidden if keep else tokens * hidden // world.size
        formula = "4bs(h + 4h/t + 4h/t)" if keep else "4bs(h/t + 4h/t + 4h/t)"
        kept[way] = Claim("", formula, 4 * (x_kept + 2 * tokens * wide), saved, "B", PAPER)
        watch = UnderWay()
        with watch:
            _results(between_shards(whole, keep, watch), own(world, x), own(world, grad_y))
        for verb, what, predicted in (
            ("all_gather", "X is gathered again", 0 if keep else 1),
            ("reduce_scatter", "dX is under way", 1),
        ):
            formula = "one for each weight that takes x"
            made[f"{way}, {what}"] = Claim("", formula, predicted, watch.products[verb], "1", "derived")
        model = between_shards(whole, keep, native)
        found = _results(model, own(world, x), own(world, grad_y))
        pairs = zip(model.parameters(), gradients, strict=True)
        expected = [own(world, y), own(world, grad_x), *(piece_of(gradient, p) for p, gradient in pairs)]
        apart[way] = Claim("", "10⁻¹²", 1e-12, distance(found, expected), "1", PAPER, "compared", "<=")
    again = sent.pop("gathered again, backward")
    of_both = {"small form": keeps, "full form": kept["gathered again"]}
    made = dict(sorted(made.items(), key=lambda item: -item[1].predicted))  # the case shown is one that sends something
    alike = "bytes sent by this rank forward, and with the input kept backward as well"
    return [
        *of_small_form,
        fold("gathered again, small and full form: bytes kept for backward", of_both, key=True),
        fold("Y, dX and all gradients against one device, both forms and ways, float64", apart, key=True),
        fold(alike, sent),
        dataclasses.replace(again, what="gathered again: bytes sent by this rank backward"),
        dataclasses.replace(kept["input kept"], what="input kept: bytes kept for backward"),
        fold("products made while X is gathered again, or dX is under way", made, key=True),
    ]


def _two_layers_of_one_device(world: World, batch: int, seq: int, hidden: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    whole = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)).double()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / hidden**0.5)
    x, grad_y = torch.randn(2, batch, seq, hidden, generator=generator, dtype=torch.float64).to(world.device)
    return whole.to(world.device), x, grad_y


def between_shards(whole: nn.Sequential, keep_gathered: bool, collectives: Any) -> nn.Sequential:
    """The same two layers over the ranks."""
    up, gelu, down = whole
    assert isinstance(up, nn.Linear) and isinstance(down, nn.Linear)
    comm = Comm(collectives=collectives)
    return nn.Sequential(
        linear.ColumnFromSequence.of(ColumnParallelLinear.from_linear(up, comm), keep_gathered),
        gelu,
        linear.RowToSequence.from_linear(down, comm),
    )


def _results(model: nn.Module, x: Tensor, grad_y: Tensor) -> list[Tensor]:
    """The output, the gradient of the input, and the gradients of the parameters, with partial sums added up."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.backward(grad_y)
    sum_partial_gradients(model)
    return [tensor for tensor in (y.detach(), x.grad, *(p.grad for p in model.parameters())) if tensor is not None]


def demo(world: World, batch: int = 2, shard: int = 4, width: int = 8) -> list[Claim]:
    """Runs the two layers one after the other, in both ways; the table shows bytes sent and kept, and the overlap.

    Args:
        batch: Sequences.
        shard: Tokens of each sequence on each rank.
        width: Inputs of a token on each rank; between the two layers, a token is 4 times as wide.
    """
    return two_layers(world, batch, shard, width)
