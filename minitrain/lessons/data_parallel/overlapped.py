"""The demo of `overlapped`: the order of events, and the time of a step on the virtual clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.collectives.full import native, ring
from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.comm import Comm
from minitrain.comm.messages import Handle
from minitrain.comm.timeline import Span, draw
from minitrain.costs import data_parallel as costs
from minitrain.costs.communication import ring_all_reduce_time
from minitrain.data_parallel import overlapped
from minitrain.data_parallel.full.bucketed import BucketedDataParallel
from minitrain.data_parallel.full.overlapped import DataParallel
from minitrain.data_parallel.full.replica import Replica
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.data_parallel import common as lesson
from minitrain.lessons.network import Network
from minitrain.models.gpt import GPT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The virtual machine: 1/32 virtual seconds per message and 1/16384 per byte, powers of two so that no sum of times
# rounds and the clock shows the formula to the last digit.
ALPHA, BETA = 2.0**-5, 2.0**-14
FORWARD, BACKWARD = 0.25, 0.5  # virtual seconds of a layer


class Watch:
    """Collectives that note the order of events: each gradient when it has arrived, each all-reduce when it starts."""

    broadcast, all_gather = staticmethod(native.broadcast), staticmethod(native.all_gather)
    reduce_scatter = staticmethod(native.reduce_scatter)

    def __init__(self, module: nn.Module):
        self.events: list[str] = []
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: self.events.append("gradient"))

    def all_reduce(
        self, tensor: Tensor, group: dist.ProcessGroup | None = None, *, check: bool | None = None
    ) -> Handle:
        self.events.append("all-reduce")
        return native.all_reduce(tensor, group, check=check)


def early_starts(world: World, rung: type[Replica], module: nn.Module, bucket_megabytes: float) -> int:
    """How many all-reduces are started before the last gradient has arrived.

    Here the last gradient is that of the token embedding, which lies in the last bucket.
    """
    watch = Watch(module)
    model = rung(module, Comm(collectives=watch), bucket_megabytes)
    lesson.step(world, model)
    last = len(watch.events) - watch.events[::-1].index("gradient")
    return watch.events[:last].count("all-reduce")


class Layer(nn.Module):
    """A layer whose gradients and flag are a multiple of n elements: a ring's chunks are equal, and its time exact."""

    def __init__(self, ranks: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256 * ranks * width - 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.mean()


def virtual_step(
    world: World, rung: type[Replica], bucket_megabytes: float, widths: Sequence[int], backward: float = BACKWARD
) -> VirtualClock:
    """One step of several layers, each of which computes for a given virtual time; returns the rank's clock."""
    layers = nn.Sequential(*(Layer(world.size, width) for width in widths)).to(world.device)
    clock = VirtualClock()
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, number=number: clock.work(FORWARD, f"{number}", "forward"))
        for parameter in layer.parameters():
            # Before the module is wrapped: a bucket leaves when the layer's virtual time has passed.
            parameter.register_post_accumulate_grad_hook(
                lambda _, number=number: clock.work(backward, f"{number}", "backward")
            )
    model = rung(layers, Comm(collectives=Network(clock, ALPHA, BETA, numbered=True)), bucket_megabytes)
    model(torch.ones((), device=world.device)).backward()
    model.synchronize()
    return clock


def virtual_times(world: World, bucketed: type[Replica], overlapped: type[Replica]) -> tuple[list[Claim], list[Span]]:
    """Claims on the time of a step with small and large buckets, after backward and during it; and rank 0's spans."""
    n = world.size
    layer = 4 * (256 * n - 1)  # bytes of a layer's weight
    single, double = (ring_all_reduce_time(1024 * n * layers, n, ALPHA, BETA) for layers in (1, 2))  # with the flags
    forward = 2 * n * FORWARD
    small, large = ([BACKWARD] * 2 * n, [single] * 2 * n), ([2 * BACKWARD] * n, [double] * n)
    at_end, meanwhile = "F + Σbₖ + Σcₖ", "F + max over k of (b₁ + … + bₖ + cₖ + … + c_B)"
    ways = {
        "buckets of a layer, after backward": (bucketed, 1, small, at_end),
        "buckets of two layers, after backward": (bucketed, 2, large, at_end),
        "buckets of a layer, during backward": (overlapped, 1, small, meanwhile),
        "buckets of two layers, during backward": (overlapped, 2, large, meanwhile),
    }
    claims, idle, spans = [], {}, []
    for number, (name, (rung, layers, times, formula)) in enumerate(ways.items(), 1):
        clock = virtual_step(world, rung, layers * layer / 2**20, [1] * 2 * n)
        overlap = formula == meanwhile
        options = {} if overlap else {"overlap": False}
        predicted = costs.step_time(forward, *times, **options)
        source = "Johnson 1954, §2" if overlap else f"{lesson.PAPER}, §3.2"
        key = layers == 2
        what = f"time of a step, {name}"
        claims.append(Claim(what, formula, predicted, clock.now, "virtual s", source, "virtual clock", key=key))
        computed = sum(span.end - span.start for span in clock.timeline.spans if span.kind in ("forward", "backward"))
        exposed = costs.exposed(forward, *times, **options)
        idle[name] = Claim("", "T − F − Σbₖ", exposed, clock.now - computed, "virtual s", "derived", "virtual clock")
        for span in clock.timeline.spans:
            lane = f"step {number}, {span.lane}"  # numbered, since rows are drawn in the order of their names
            spans.append(Span(span.rank, lane, span.kind, span.label, span.start, span.end))
    what = "time of a step in which nothing is computed, buckets of two layers during backward, and other ways"
    last_first = dict(reversed(idle.items()))
    return [*claims, large_in_the_middle(world, overlapped, meanwhile), fold(what, last_first)], spans


def large_in_the_middle(world: World, overlapped: type[Replica], formula: str) -> Claim:
    """The claim on a step whose third bucket of five is large: the network waits before it and is busy after it."""
    n, widths, backward = world.size, [1, 1, 6, 1, 1], 2 * BACKWARD
    clock = virtual_step(world, overlapped, 1e-6, widths, backward)
    communication = [ring_all_reduce_time(1024 * n * width, n, ALPHA, BETA) for width in widths]
    predicted = costs.step_time(5 * FORWARD, [backward] * 5, communication)
    what, source = "time of a step, a large bucket in the middle, during backward", "Johnson 1954, §2"
    return Claim(what, formula, predicted, clock.now, "virtual s", source, "virtual clock")


def picture(spans: list[Span]) -> Figure:
    """Rank 0's four steps, one below the other."""
    return draw(spans, "A step with small and large buckets, after backward and during it", "virtual seconds")


def demo(world: World, layers: int = 2, hidden: int = 32) -> list[Claim]:
    """Overlaps buckets with backward; the table shows what starts when, time on the virtual clock, and torch's DDP.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
    """
    limit, pair = lesson.BUCKET / 2**20, lesson.neighbours(world)

    def gpt(seed: int) -> GPT:
        return lesson.small_gpt(world, seed, layers, hidden)

    # Every rank draws other weights; rank 0's are what all start from.
    ledger, started, module = Ledger(), [], gpt(world.rank)
    for parameter in module.parameters():  # before the module is wrapped: the bucket has not left yet
        parameter.register_post_accumulate_grad_hook(lambda _: started.append(ledger.calls("all_reduce")))
    small = overlapped.DataParallel(module, None, limit)
    with ledger:
        lesson.step(world, small)
    model = DataParallel(gpt(world.rank), None, limit)
    through_ring = DataParallel(gpt(world.rank), Comm(collectives=ring), limit)
    sent = len(costs.buckets(lesson.sizes(model), lesson.BUCKET))
    calls = {"small form": ledger, "full form": lesson.counted(world, model)}
    early = {"small form": started[-1], "full form": early_starts(world, DataParallel, gpt(0), limit)}
    # On two ranks a sum is the same in either order; with more, the full form's flags move elements to other chunks.
    alike = {
        "small form beside the full form": lesson.like_full(
            world, overlapped.DataParallel(gpt(world.rank), pair, limit), DataParallel(gpt(world.rank), pair, limit)
        ),
        **lesson.like_ddp(world, DataParallel, [lesson.WithSpare(gpt(0)) for _ in range(2)], pair, limit),
    }
    times, spans = virtual_times(world, BucketedDataParallel, DataParallel)
    source = f"{lesson.PAPER}, §3.2.3"
    claims = [
        fold(
            "all-reduces in a step, buckets of 32 KiB",
            {
                form: Claim("", "B, packed from the last", sent, count.calls("all_reduce"), "1", source)
                for form, count in calls.items()
            },
            key=True,
        ),
        dataclasses.replace(lesson.small_payload({"GPT": (ledger, small)}), key=False),
        lesson.mean_of_parts(world, {"small form": small, "full form": model}, gpt(0)),
        fold(
            "all-reduces started before the last gradient has arrived",
            {form: Claim("", "B − 1", sent - 1, count, "1", source) for form, count in early.items()},
            key=True,
        ),
        fold(
            "weights that differ after 5 steps on two ranks: small form from full form, full form from torch's DDP",
            alike,
            key=True,
        ),
        *lesson.bucket_volume(world, {"GPT": model}, through_ring),
        *times,
    ]
    with world.timed("a step of forward, backward and synchronize"):
        lesson.step(world, model)
    world.figure(lambda: picture(spans))
    return claims
