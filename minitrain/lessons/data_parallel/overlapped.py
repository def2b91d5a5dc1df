"""What the demo of `overlapped` shows: which event comes before which, and the time of a step on the virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.collectives.full import native, ring
from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.comm import AnyComm, Comm
from minitrain.comm.messages import Handle
from minitrain.comm.timeline import Span, draw
from minitrain.costs import data_parallel as costs
from minitrain.costs.communication import ring_all_reduce_time
from minitrain.data_parallel import overlapped
from minitrain.data_parallel.full.bucketed import BucketedDataParallel
from minitrain.data_parallel.full.overlapped import DataParallel
from minitrain.data_parallel.full.replica import Replica
from minitrain.lessons import Claim
from minitrain.lessons.data_parallel import common as lesson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The virtual machine: 1/32 virtual seconds a message and 1/16384 a byte, powers of two so that no sum of times rounds
# and the clock shows the formula to the last digit.
ALPHA, BETA = 2.0**-5, 2.0**-14
FORWARD, BACKWARD = 0.25, 0.5  # virtual seconds of a layer


class Watch:
    """Collectives that note the order of events: each gradient when it is there, each all-reduce when it is started."""

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


def early_starts(world: World, rung: type[Replica], module: nn.Module, bucket_megabytes: float) -> Claim:
    """The claim on how many all-reduces are started before the last gradient is there: all but the last bucket's.

    Here the last gradient is that of the token embedding, which lies in the last bucket.
    """
    watch = Watch(module)
    model = rung(module, Comm(collectives=watch), bucket_megabytes)
    lesson.step(world, model)
    last = len(watch.events) - watch.events[::-1].index("gradient")
    predicted = len(costs.buckets(lesson.sizes(model), bucket_megabytes * 2**20)) - 1
    measured = watch.events[:last].count("all-reduce")
    source = f"{lesson.PAPER}, §3.2.3"
    return Claim("all-reduces started before the last gradient is there", "B − 1", predicted, measured, "1", source)


def small_form(world: World, layers: int, hidden: int, bucket_megabytes: float) -> list[Claim]:
    """Claims on the small form: what it sends and when, the gradients of one device, and the full form's weights."""

    def wrap(module: nn.Module, group: dist.ProcessGroup | None = None) -> overlapped.DataParallel:
        return overlapped.DataParallel(module, group, bucket_megabytes)

    def gpt(seed: int) -> nn.Module:
        return lesson.small_gpt(world, seed, layers, hidden)

    ledger, started, module = Ledger(), [], gpt(world.rank)
    for parameter in module.parameters():  # before the module is wrapped: the bucket has not left yet
        parameter.register_post_accumulate_grad_hook(lambda _: started.append(ledger.calls("all_reduce")))
    model = wrap(module)
    with ledger:
        lesson.step(world, model)
    sent = len(costs.buckets(lesson.sizes(model), lesson.BUCKET))
    pair = lesson.neighbours(world)
    formula, source = "B, buckets of 32 KiB packed from the last", f"{lesson.PAPER}, §3.2.3"
    what = "small form: all-reduces started before the last gradient has come"
    return [
        *lesson.small_form(world, wrap(gpt(world.rank)), sent, formula, gpt(0)),
        Claim(what, "B − 1", sent - 1, started[-1], "1", source, key=True),
        # On two ranks a sum is the same in either order; with more, the full form's flags move elements.
        lesson.like_full(
            world,
            wrap(gpt(world.rank), pair),
            DataParallel(gpt(world.rank), pair, bucket_megabytes),
            ", on two ranks",
        ),
    ]


class Port:
    """The ring beside a rank that computes on: real messages on a virtual clock of their own.

    So is a GPU with a stream for communication: an all-reduce begins when its tensor is there and the one before it is
    done, takes no time of the rank that started it, and whoever waits for it goes on when it has finished.
    """

    broadcast, all_gather = staticmethod(ring.broadcast), staticmethod(ring.all_gather)  # not timed
    reduce_scatter = staticmethod(ring.reduce_scatter)

    def __init__(self, compute: VirtualClock):
        self._compute, self._clock = compute, VirtualClock(ALPHA, BETA)
        self._calls = 0

    def all_reduce(
        self, tensor: Tensor, group: dist.ProcessGroup | None = None, *, check: bool | None = None
    ) -> Handle:
        self._clock.wait_until(self._compute.now)
        begin = self._clock.now
        with self._clock:
            ring.all_reduce(tensor, group, check=check).wait()
        end = self._clock.now
        self._calls += 1
        self._compute.timeline.record(f"{self._calls}", "communicate", "network", begin, end)
        return Handle((), tensor, lambda: self._compute.wait_until(end))


class Layer(nn.Module):
    """A layer whose gradients and flag are a multiple of n elements: a ring's chunks are equal, and its time exact."""

    def __init__(self, ranks: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256 * ranks - 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.mean()


def virtual_step(world: World, rung: type[Replica], bucket_megabytes: float) -> VirtualClock:
    """One step of 2n layers, each of which computes for a given virtual time; returns the rank's clock."""
    layers = nn.Sequential(*(Layer(world.size) for _ in range(2 * world.size))).to(world.device)
    clock = VirtualClock()
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, number=number: clock.work(FORWARD, f"{number}", "forward"))
        for parameter in layer.parameters():
            # Before the module is wrapped: a bucket leaves when the layer's virtual time has passed.
            parameter.register_post_accumulate_grad_hook(
                lambda _, number=number: clock.work(BACKWARD, f"{number}", "backward")
            )
    model = rung(layers, Comm(collectives=Port(clock)), bucket_megabytes)
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
        "buckets of a layer, after backward": (bucketed, 1, costs.step_time(forward, *small, overlap=False), at_end),
        "buckets of two layers, after backward": (bucketed, 2, costs.step_time(forward, *large, overlap=False), at_end),
        "buckets of a layer, during backward": (overlapped, 1, costs.step_time(forward, *small), meanwhile),
        "buckets of two layers, during backward": (overlapped, 2, costs.step_time(forward, *large), meanwhile),
    }
    claims, spans = [], []
    for number, (name, (rung, layers, predicted, formula)) in enumerate(ways.items(), 1):
        clock = virtual_step(world, rung, layers * layer / 2**20)
        source = "Johnson 1954, §2" if formula == meanwhile else f"{lesson.PAPER}, §3.2"
        what = f"time of a step, {name}"
        key = layers == 2
        claims.append(Claim(what, formula, predicted, clock.now, "virtual s", source, "virtual clock", key=key))
        for span in clock.timeline.spans:
            lane = f"step {number}, {span.lane}"  # numbered, since rows are drawn in the order of their names
            spans.append(Span(span.rank, lane, span.kind, span.label, span.start, span.end))
    return claims, spans


def picture(spans: list[Span]) -> Figure:
    """Rank 0's four steps, one below the other."""
    return draw(spans, "A step with small and large buckets, after backward and during it", "virtual seconds")


def demo(world: World, layers: int = 2, hidden: int = 32) -> list[Claim]:
    """Overlaps buckets with backward; the table shows what starts when, time on the virtual clock, and torch's DDP.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
    """
    bucket_megabytes = lesson.BUCKET / 2**20

    def wrap(comm: AnyComm = None) -> DataParallel:
        # Every rank draws other weights; rank 0's are what all start from.
        module = lesson.small_gpt(world, world.rank, layers, hidden)
        return DataParallel(module, comm, bucket_megabytes)

    model = wrap()
    predicted = len(costs.buckets(lesson.sizes(model), lesson.BUCKET))
    times, spans = virtual_times(world, BucketedDataParallel, DataParallel)
    modules: list[nn.Module] = [lesson.WithSpare(lesson.small_gpt(world, 0, layers, hidden)) for _ in range(2)]
    claims = [
        *small_form(world, layers, hidden, bucket_megabytes),
        lesson.calls(world, model, predicted, "B, packed from the last", "buckets of 32 KiB"),
        *lesson.bucket_volume(world, model, wrap(Comm(collectives=ring))),
        lesson.mean_of_parts(world, model, lesson.small_gpt(world, 0, layers, hidden)),
        early_starts(world, DataParallel, lesson.small_gpt(world, 0, layers, hidden), bucket_megabytes),
        *times,
        # On two ranks a sum is the same in either order, so buckets need not hold the same.
        *lesson.like_ddp(world, DataParallel, modules, lesson.neighbours(world), bucket_megabytes),
    ]
    with world.timed("a step of forward, backward and synchronize"):
        lesson.step(world, model)
    world.figure(lambda: picture(spans))
    return claims
