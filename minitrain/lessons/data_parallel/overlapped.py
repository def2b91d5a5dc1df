"""The lesson of `minitrain.data_parallel.overlapped`: the order of events, and the time of a step.

The time is that of the full form, whose messages can travel on a virtual clock of their own, next to the computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.comm import Comm
from minitrain.comm.groups import new_group
from minitrain.costs import data_parallel as costs
from minitrain.costs.communication import ring_all_reduce_time
from minitrain.data_parallel.full.overlapped import DataParallel
from minitrain.data_parallel.overlapped import DataParallel as Small
from minitrain.lessons.data_parallel import common as lesson
from minitrain.lessons.network import Network
from minitrain.lessons.pictures import data_parallel as pictures
from minitrain.lessons.rows import Claim, Rows

# The virtual machine: 1/32 virtual seconds per message and 1/16384 per byte, powers of two so that no sum of times
# rounds and the clock shows the formula to the last digit.
ALPHA, BETA = 2.0**-5, 2.0**-14
FORWARD = 0.25  # virtual seconds of a layer

AFTER = "after backward", "F + Σbₖ + Σcₖ", f"{lesson.PAPER}, §3.2"
DURING = "during backward", "F + max over k of (b₁ + … + bₖ + cₖ + … + c_B)", "Johnson 1954, §2"

# A step: whether buckets leave during backward, layers in each bucket, each layer's width and its seconds of backward.
Way = tuple[bool, int, Sequence[int], float]


def demo(world: World) -> list[Claim]:
    """Overlaps buckets with backward; the table shows what starts when, time on the virtual clock, and torch's DDP."""
    limit, rows = lesson.BUCKET / 2**20, Rows(f"{lesson.PAPER}, §3.2.3")
    ledger, started, module = Ledger(), [], lesson.small_gpt(world)
    for parameter in module.parameters():  # before the module is wrapped: the bucket has not left yet
        parameter.register_post_accumulate_grad_hook(lambda _: started.append(ledger.calls("all_reduce")))
    model = Small(module, None, limit)
    with ledger:
        lesson.step(world, model)
    sent = len(costs.buckets(lesson.sizes(model), lesson.BUCKET))
    what = "small form: all-reduces in a step, buckets of 32 KiB"
    rows.add(what, "B, packed from the last", sent, ledger.calls("all_reduce"), "1")
    # The last gradient is that of the token embedding, which lies in the last bucket.
    what = "small form: all-reduces that have started before the last gradient has arrived"
    rows.add(what, "B − 1", sent - 1, started[-1], "1")
    lesson.mean_of_parts(world, rows, model, lesson.small_gpt(world, 0))
    same_weights(world, rows, limit)

    # And a large bucket in the middle: the network waits before it and is busy after it.
    ways = four_ways(world) | {"a large bucket in the middle, during backward": (True, 1, [1, 1, 6, 1, 1], 1.0)}
    clocks = {name: virtual_step(world, *way) for name, way in ways.items()}
    for name, (overlap, each, widths, backward) in ways.items():
        buckets = [widths[i : i + each] for i in range(0, len(widths), each)]
        sent = [ring_all_reduce_time(1024 * world.size * sum(bucket), world.size, ALPHA, BETA) for bucket in buckets]
        predicted = costs.step_time(FORWARD * len(widths), [backward * each] * len(buckets), sent, overlap=overlap)
        _, formula, source = DURING if overlap else AFTER
        what = "full form: time of a step that sends after backward, or during it; buckets of one layer, and of two"
        rows.time(what, formula, predicted, clocks[name].now, source, case=name)
    spans_of = {name: clocks[name].timeline.spans for name in four_ways(world)}
    world.figure(lambda: pictures.steps(spans_of))
    return rows.claims()


def same_weights(world: World, rows: Rows, limit: float) -> None:
    """Claim that five steps of both forms give the weights of torch's DDP.

    All multiply by 1/n and all-reduce. On two ranks a sum is the same in either order; with more, the order depends on
    where in a bucket an element lies, and the full form's buckets carry flags, too. So ranks 0 and 1 are a group, 2 and
    3, …; the last of an odd number is alone.
    """
    pairs = [new_group([rank for rank in (k, k + 1) if rank < world.size]) for k in range(0, world.size, 2)]
    pair, found = pairs[world.rank // 2], []
    ddp = DistributedDataParallel(lesson.small_gpt(world), process_group=pair)
    for model in (Small(lesson.small_gpt(world), pair, limit), DataParallel(lesson.small_gpt(world), pair, limit), ddp):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for number in range(5):
            optimizer.zero_grad()
            model(*lesson.tokens(world, world.rank, number))[1].backward()
            getattr(model, "synchronize", lambda: None)()  # DDP has none
            optimizer.step()
        found.append([parameter.detach() for parameter in model.parameters()])
    what = "weights that differ after 5 steps on two ranks from those of torch's DDP"
    for name, weights in zip(("small form", "full form"), found, strict=False):
        rows.equal(what, weights, found[-1], case=name)


def four_ways(world: World) -> dict[str, Way]:
    """Buckets of one layer and of two, after backward and during it."""
    return {
        f"buckets of {number}, {when}": (overlap, layers, [1] * 2 * world.size, 0.5)
        for overlap, (when, *_) in ((False, AFTER), (True, DURING))
        for layers, number in ((1, "one layer"), (2, "two layers"))
    }


def virtual_step(world: World, overlap: bool, each: int, widths: Sequence[int], backward: float) -> VirtualClock:
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
    comm = Comm(collectives=Network(clock, ALPHA, BETA, numbered=True))
    model = DataParallel(layers, comm, each * 4 * (256 * world.size - 1) / 2**20)
    # Under no_sync(), no bucket leaves before synchronize().
    with nullcontext() if overlap else model.no_sync():
        model(torch.ones((), device=world.device)).backward()
    model.synchronize()
    return clock


class Layer(nn.Module):
    """A layer whose gradients and flag are a multiple of n elements: a ring's chunks are equal, and its time exact."""

    def __init__(self, ranks: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256 * ranks * width - 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.mean()
