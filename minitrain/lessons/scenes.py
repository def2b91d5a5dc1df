"""The scenes of the player: small forms on tensors so small that a reader sees every number.

Each scene makes its tensors on this rank and says what is run, what is always on screen, and what to look at. Weights
are whole numbers, so that products can be followed by heart.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.context_parallel import ring_attention, ulysses
from minitrain.costs import pipeline, zero
from minitrain.data_parallel.diloco import DiLoCo
from minitrain.data_parallel.naive import NaiveDataParallel
from minitrain.data_parallel.overlapped import DataParallel
from minitrain.lessons.message_scenes import ITEM, hierarchical_all_reduce, ring_all_reduce, tree_all_reduce
from minitrain.mixture_of_experts.expert_parallel import ExpertParallel
from minitrain.parameter_server.synchronous import Server, Worker
from minitrain.pipeline_parallel import gpipe, one_f_one_b
from minitrain.player.record import Scene
from minitrain.sequence_parallel.linear import ColumnFromSequence, RowToSequence
from minitrain.tensor_parallel.attention import ParallelAttention
from minitrain.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from minitrain.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from minitrain.zero.stage1 import Zero1
from minitrain.zero.stage3 import Zero3

SGD: Any = partial(torch.optim.SGD, lr=1.0)


def whole(module: Any) -> Any:
    """The same module with whole numbers as its parameters, the same on all ranks."""
    for parameter in module.parameters():
        parameter.data = (torch.arange(parameter.numel()) % 3 - 1.0 + (parameter.dim() == 1)).view_as(parameter)
    return module


def layers(count: int = 2) -> nn.Sequential:
    net = whole(nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(count))))
    for number, weight in enumerate(net.parameters()):
        weight.data += number  # so that a reader sees which layer's numbers these are
    return net


def example(world: World) -> Tensor:
    """An input of this rank's own."""
    return torch.tensor([[1.0, 2.0]]) * (world.rank + 1)


# Data parallelism and ZeRO.


def naive_data_parallel(world: World) -> Scene:
    net = layers()
    model = NaiveDataParallel(net)

    def run() -> None:
        model(example(world)).sum().backward()
        model.synchronize()

    look = "Each rank has an input of its own, and so gradients of its own, until they are averaged."
    return Scene(run, {"": net}, "Data parallelism, one parameter at a time", look)


def overlapped_data_parallel(world: World) -> Scene:
    net = layers()
    model = DataParallel(net, bucket_megabytes=1e-6)

    def run() -> None:
        model(example(world)).sum().backward()
        model.synchronize()

    look = "The last layer's gradients leave while backward is still at the first layer."
    bucketed = "minitrain.data_parallel.bucketed"
    return Scene(run, {"": net}, "Data parallelism, overlapped with backward", look, modules=[bucketed])


def diloco(world: World) -> Scene:
    net = whole(nn.Linear(3, 1, bias=False))
    model, inner = DiLoCo(net, every=2), SGD(net.parameters())

    def run() -> None:
        for _ in range(4):
            inner.zero_grad()
            model(torch.eye(3)[world.rank % 3]).sum().backward()
            inner.step()
            model.after_step()

    look = "Two inner steps on each rank alone, then one outer step together."
    return Scene(run, {"": net, "shared": lambda: model.shared[0]}, "DiLoCo", look)


def zero_1(world: World) -> Scene:
    model = Zero1(whole(nn.Linear(3, 1)), SGD)

    def run() -> None:
        model(torch.full((1, 3), world.rank + 1.0)).sum().backward()
        model.synchronize()
        model.step()
        model.zero_grad()

    return Scene(
        run,
        {"parameters": model.flat, "gradients": model.gradients},
        "ZeRO stage 1",
        "Each rank steps only its half of the four parameters (Ψ: 16 B), and then collects the other half.",
        (
            "2Ψ · (n−1)/n",
            zero.volume(1, 4 * ITEM) * (world.size - 1) / world.size,
        ),
        phases={"Zero1.synchronize": "reduce-scatter", "Zero1.step": "step, all-gather"},
    )


def zero_3(world: World) -> Scene:
    model = Zero3(layers(3), SGD)

    def run() -> None:
        model(example(world)).sum().backward()
        model.step()
        model.zero_grad()

    show: dict[str, Any] = {}
    for number, unit in enumerate(model.units):
        show |= {f"block {number}": unit.flat, f"shard {number}": unit.shard}
    return Scene(
        run,
        show,
        "ZeRO stage 3",
        "Three blocks of four weights (Ψ: 48 B). Each is gathered while the one before runs, and freed after its run.",
        (
            "3Ψ · (n−1)/n",
            zero.volume(3, 12 * ITEM) * (world.size - 1) / world.size,
        ),
        hide=["ranks"],
        phases={"Zero3.forward": "forward", "Unit.forward.<lambda>": "backward", "Zero3.step": "step"},
        ask={
            "following.prefetch()": (
                "Which blocks will be in memory after this line?",
                [f"block {each}" for each in range(3)],
            )
        },
    )


# Tensor, sequence and context parallelism.


def parallel_linear(world: World) -> Scene:
    column = ColumnParallelLinear.from_linear(whole(nn.Linear(2, 4)))
    row = RowParallelLinear.from_linear(whole(nn.Linear(4, 2)))
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    return Scene(
        lambda: row(column(x)).sum().backward(),
        {"x": x, "column": column, "row": row},
        "Column-parallel, then row-parallel",
        "x is the same on both ranks. What each has in between is its own, and only a sum is sent.",
        modules=["minitrain.tensor_parallel.mappings"],
    )


def parallel_attention(world: World) -> Scene:
    def linear() -> nn.Linear:
        return whole(nn.Linear(4, 4))

    attention: Any = nn.Module()
    attention.query, attention.key, attention.value, attention.output = (linear() for _ in range(4))
    attention.head_size, attention.core, attention.rotary = 2, F.scaled_dot_product_attention, None
    parallel, x = ParallelAttention(attention), torch.eye(4)[None, :2].clone().requires_grad_()
    return Scene(
        lambda: parallel(x).sum().backward(),
        {"x": x},
        "Tensor-parallel attention",
        "Two heads, one on each rank: nothing is sent until their outputs are added up.",
        modules=["minitrain.tensor_parallel.mappings"],
    )


def vocabulary_loss(world: World) -> Scene:
    logits = (torch.arange(6.0).view(2, 3) % 4 + world.rank).requires_grad_()
    return Scene(
        lambda: vocab_parallel_cross_entropy(logits, torch.tensor([1, 4])).backward(),
        {"logits": logits},
        "The loss of a divided vocabulary",
        "Two tokens and six words, three on each rank. Three numbers per token are sent, and never the logits.",
    )


def sequence_linear(world: World) -> Scene:
    column, row = whole(ColumnFromSequence(2, 4)), whole(RowToSequence(4, 2))
    x = (torch.ones(1, 1, 2) * (world.rank + 1)).requires_grad_()
    return Scene(
        lambda: row(column(x)).sum().backward(),
        {"x": x},
        "Sequence parallelism around two products",
        "Each rank has one of two tokens, and gathers the other only for its product.",
        modules=["minitrain.sequence_parallel.mappings"],
    )


def attention_in_a_ring(world: World) -> Scene:
    query, key = (torch.ones(1, 1, 1, 2) * (world.rank + 1) for _ in range(2))
    value = torch.ones(1, 1, 1, 2) * 10.0**world.rank
    for each in (query, key, value):
        each.requires_grad_()
    return Scene(
        lambda: ring_attention.ring_attention(query, key, value, world.size).sum().backward(),
        {"query": query, "key": key, "value": value},
        "Ring attention",
        "One token on each rank. Keys and values travel around the ring; queries stay.",
        skip=("positions",),
        hide=["seq", "causal", "rank", "ranks"],
    )


def ulysses_attention(world: World) -> Scene:
    count = world.size
    q, k, v = (torch.arange(count * 2.0).view(1, count, 1, 2) + 100 * world.rank + 10 * each for each in range(3))
    return Scene(
        lambda: ulysses.attention(q, k, v),
        {"q": q},
        "Ulysses",
        "Two heads and two tokens. Before attention each rank has one token of all heads; within it, one whole head.",
    )


# Pipelines and experts.


def pipeline_step(step: Callable[..., Any], title: str, world: World) -> Scene:
    count = 4
    stage = nn.Linear(1, 1, bias=False)
    stage.weight.data.fill_(2.0)
    batch = [torch.tensor([[each + 1.0]]) for each in range(count)]
    return Scene(
        lambda: step(stage, batch, batch, lambda y, _: (count * y).mean(), torch.empty(1, 1)),
        {"weight": stage.weight},
        title,
        "Each stage multiplies by 2. Four micro-batches, the numbers 1 to 4; a backward takes as long as two forwards.",
        ("m activations, m gradients", pipeline.sent([ITEM] * (world.size - 1), world.size, count, world.rank).bytes),
        hide=["inputs", "targets", "template", "losses"],
        keep=["held"],
        work={"y = stage(x": (12, "F"), "y.backward(grad_y)": (24, "B")},
        ask={"held.append": ("How many micro-batches will this rank hold after this line?", ["held"])},
    )


class Multiply(nn.Module):
    """Expert e, which multiplies by 10ᵉ."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class NamedExperts(nn.Module):
    """A layer whose router sends a token to the expert that its first number names."""

    def __init__(self, experts: int):
        super().__init__()
        self.experts = nn.ModuleList(Multiply(10.0**each) for each in range(experts))
        self.router = nn.Identity()

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.flatten(0, 1)
        return tokens[:, :1].long(), torch.ones(len(tokens), 1)


def experts(world: World) -> Scene:
    chosen = [[0, 1, 1], [1, 0, 1], [2, 1, 0]][world.rank]
    x = torch.tensor([[[float(each), world.rank * 3 + number + 1.0] for number, each in enumerate(chosen)]])
    model = ExpertParallel(NamedExperts(world.size))  # type: ignore[bad-argument-type]
    return Scene(
        lambda: model(x),
        {"x": x[0]},
        "Expert parallelism",
        "A token is [its expert, its name]. Expert e is on rank e and multiplies by 10ᵉ.",
        hide=["ranks", "local", "choice", "even", "gates", "order", "index"],
        keep=["tokens"],
        phases={
            "counts = chosen": "how many rows?",
            "rows = AllToAll": "dispatch",
            "for index, expert": "experts",
            "output = AllToAll": "combine",
        },
    )


# Servers and checkpoints.


def synchronous_server(world: World) -> Scene:
    net, steps = whole(nn.Linear(2, 1, bias=False)), 2
    look = "Rank 0 serves, ranks 1 and 2 work: pull, backward, push."
    if world.rank == 0:
        server = Server(net, SGD)
        return Scene(lambda: server.serve(steps), {"parameters": server.flat}, "A parameter server", look)
    worker = Worker(net)

    def run() -> None:
        for _ in range(steps):
            worker.pull()
            net(example(world)).sum().backward()
            worker.push()
            net.zero_grad()

    return Scene(run, {"parameters": worker.flat}, "A parameter server", look)


def resharding(world: World) -> Scene:
    from minitrain.checkpointing import resharding as technique
    from minitrain.comm.control import gather_objects

    folder = Path(gather_objects(tempfile.mkdtemp())[0])
    shard, rows = torch.arange(6.0).view(1, 6) + 10 * world.rank, 6 // world.size
    loaded = torch.full((world.size, rows), float("nan"))

    def run() -> None:
        technique.save(folder, shard, (world.rank, 0))
        technique.load(folder, loaded, (0, world.rank * rows))

    look = "Saved by rows, one row on each rank; loaded by columns."
    return Scene(run, {"shard": shard, "loaded": loaded}, "Resharding a checkpoint", look)


# The technique -> its scene, and on how many ranks it is played.
SCENES: dict[str, tuple[Callable[[World], Scene], int]] = {
    "minitrain.collectives.ring": (ring_all_reduce, 4),
    "minitrain.collectives.tree": (tree_all_reduce, 4),
    "minitrain.collectives.hierarchical": (hierarchical_all_reduce, 4),
    "minitrain.data_parallel.naive": (naive_data_parallel, 2),
    "minitrain.data_parallel.overlapped": (overlapped_data_parallel, 2),
    "minitrain.data_parallel.diloco": (diloco, 3),
    "minitrain.zero.stage1": (zero_1, 2),
    "minitrain.zero.stage3": (zero_3, 2),
    "minitrain.tensor_parallel.linear": (parallel_linear, 2),
    "minitrain.tensor_parallel.attention": (parallel_attention, 2),
    "minitrain.tensor_parallel.cross_entropy": (vocabulary_loss, 2),
    "minitrain.sequence_parallel.linear": (sequence_linear, 2),
    "minitrain.context_parallel.ring_attention": (attention_in_a_ring, 3),
    "minitrain.context_parallel.ulysses": (ulysses_attention, 2),
    "minitrain.pipeline_parallel.gpipe": (partial(pipeline_step, gpipe.step, "A pipeline: GPipe"), 3),
    "minitrain.pipeline_parallel.one_f_one_b": (partial(pipeline_step, one_f_one_b.step, "A pipeline: 1F1B"), 3),
    "minitrain.mixture_of_experts.expert_parallel": (experts, 3),
    "minitrain.parameter_server.synchronous": (synchronous_server, 3),
    "minitrain.checkpointing.resharding": (resharding, 3),
}
