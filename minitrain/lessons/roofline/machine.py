"""A virtual machine: real products and real messages, which take the time that two numbers give them."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from minitrain.comm import VirtualClock
from minitrain.comm.messages import Handle, rank_and_size
from minitrain.comm.timeline import Span
from minitrain.lessons.network import Network
from minitrain.roofline.flops import Flops


class VirtualMachine(Flops):
    """`with VirtualMachine(speed, link) as machine: …`: what happens in the block takes virtual time on this rank.

    Each product that is really computed takes its counted operations over `speed`. Each message that is really sent, by
    the ring, takes its bytes over `link`. Products and messages have a clock each, as a GPU has a stream for each
    (see `Network`); that of the products, `compute.now`, is the time of the block.

    Args:
        speed: Operations in a virtual second.
        link: Bytes in a virtual second, out of this rank and into it at once.
    """

    def __init__(self, speed: float, link: float):
        super().__init__()
        self.compute, self.speed = VirtualClock(), speed
        self.network = Network(self.compute, 0.0, 1 / link)
        self.all_reduce = self.network.all_reduce  # as `minitrain.comm.messages.all_reduce`, through the ring

    def add(self, kind: str, flops: int, moved: int) -> None:
        super().add(kind, flops, moved)
        self.compute.work(flops / self.speed)

    def all_gather(self, shard: Tensor, group: dist.ProcessGroup | None = None) -> Handle:
        """As `minitrain.comm.messages.all_gather`, through the ring."""
        rank, ranks = rank_and_size(group)
        whole = shard.new_empty(ranks * shard.shape[0], *shard.shape[1:])
        whole.chunk(ranks)[rank].copy_(shard)
        return self.network.all_gather(whole, group)

    @property
    def computing(self) -> float:
        """Virtual seconds in which a product was computed."""
        return seconds(self.spans("compute"))

    @property
    def sending(self) -> float:
        """Virtual seconds in which the network was busy."""
        return seconds(self.spans("network"))

    def spans(self, lane: str = "") -> list[Span]:
        """What happened when, on both clocks or on one."""
        return [span for span in self.compute.timeline.spans if lane in ("", span.lane)]


def seconds(spans: list[Span]) -> float:
    """Of all spans together."""
    return sum(span.end - span.start for span in spans)
