"""Random numbers that must be equal on all tensor-parallel ranks, and random numbers that must differ.

**Idea.** Every rank holds a copy of the residual stream, and the copies stay equal only if dropout hits the same
elements on all ranks. Inside attention each rank has heads of its own, and there dropout must hit other elements on
each: with equal masks, head 0 of every rank would lose the same weights. So there are two streams of random numbers,
`replicated` and `sharded`.

**Source.** Shoeybi et al. 2019, "Megatron-LM", appendix B ("Model Parallel Random Number Generation").

**What each rank holds.** No state but that of torch's own generators. `Streams.at(step, micro_batch)` seeds these from
(seed, step, micro-batch), the same on all ranks. Where a module draws, they are forked, and seeded from that seed, the
module's name (which has the layer in it), the stream, and for `sharded` the rank.

**What is sent, when and why.** Nothing: ranks that hash the same words have the same numbers.

**Cost.** A fork and a hash wherever dropout draws, tens of microseconds.

A mask depends on its place alone, not on how many numbers were drawn before it. So a rank that draws some for itself
stays in step with the others, and a layer drops the same elements whichever pipeline stage it is on. The place is kept
in the default generator as its seed, and not in a variable of ours, because that is what recomputation
(`torch.utils.checkpoint`) puts back: **a micro-batch that is computed again after the next has begun must see the masks
of its own place.** What goes wrong without streams: with ranks seeded alike, heads share masks; with ranks seeded
differently, the copies of the residual stream drift apart, and no error says so.

**Also called.** `CudaRNGStatesTracker` and `model-parallel-rng` (Megatron-LM), which keep a generator's state for each
stream; `OffsetBasedRNGTracker` (DTensor).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minitrain.runtime import Claim, World, run
from minitrain.runtime.control import gather_objects
from minitrain.tensor_parallel.checks import place

Stream = Literal["replicated", "sharded"]


class Streams:
    """The two streams of random numbers of one tensor-parallel rank.

    Args:
        seed: Any integer, the same on all tensor-parallel ranks. Data-parallel ranks need different seeds, or
            micro-batches numbered through over all of them.
        group: The tensor-parallel ranks; None means everyone.

    Raises:
        ValueError: This rank is not in the group.
    """

    def __init__(self, seed: int, group: dist.ProcessGroup | None = None):
        self.seed = seed
        self.rank, _ = place(group)
        self._begun = False

    def at(self, step: int, micro_batch: int = 0) -> None:
        """Go to a place in training: to be called before each forward.

        It seeds torch's generators, all of them, as `torch.manual_seed` does. So what is drawn without a stream is the
        same on all ranks too.

        Args:
            step: The training step.
            micro_batch: Which of the step's micro-batches.
        """
        self._begun = True
        torch.manual_seed(_number(f"{self.seed}/{step}/{micro_batch}"))

    def __deepcopy__(self, memo: Any) -> Streams:
        return self  # a copied model draws where the first one does

    @contextmanager
    def draw(self, stream: Stream, name: str, device: torch.device) -> Iterator[None]:
        """Inside, torch's generators give the numbers of one stream; afterwards they go on as if nothing had been.

        Args:
            stream: "replicated" or "sharded".
            name: Who draws, such as "blocks.3.mlp_dropout"; different for everyone who draws.
            device: Where the numbers are drawn.

        Raises:
            ValueError: `stream` is unknown.
            RuntimeError: `at` has not been called yet.
        """
        if stream not in get_args(Stream):
            raise ValueError(f"stream={stream!r} is unknown; use one of {get_args(Stream)}")
        if not self._begun:
            raise RuntimeError(f"{name} cannot draw before streams.at(step, micro_batch); call it before each forward")
        whose = f"/{self.rank}" if stream == "sharded" else ""
        # The seed of the CPU's generator is the place, also on a GPU, and is known without asking the GPU.
        seed = _number(f"{torch.initial_seed()}/{name}/{stream}{whose}")
        gpus = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=gpus):
            torch.default_generator.manual_seed(seed)
            for gpu in gpus:
                kind = torch.get_device_module(gpu)
                with kind.device(gpu):
                    kind.manual_seed(seed)
            yield


class InStream(nn.Module):
    """A module that draws from one of the streams, such as a dropout or the core of attention.

    Args:
        module: The module; its forward has one tensor at least, on whose device it draws.
        streams: Where the numbers come from.
        stream: Which of the two.
        name: The module's name in the whole model.
    """

    def __init__(self, module: nn.Module, streams: Streams, stream: Stream, name: str):
        super().__init__()
        self.module, self.streams, self.stream, self.name = module, streams, stream, name

    def forward(self, *inputs: Tensor) -> Any:
        if not self.training:
            return self.module(*inputs)  # nothing is dropped, so nothing is drawn
        with self.streams.draw(self.stream, self.name, inputs[0].device):
            return self.module(*inputs)

    def extra_repr(self) -> str:
        return self.stream


def _number(words: str) -> int:
    """63 bits, the same on every machine; torch takes no more."""
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little") >> 1


def demo(world: World, elements: int = 4096) -> list[Claim]:
    """Drops half of a tensor in many ways; the table shows which masks are equal on all ranks, and which are not.

    Args:
        elements: Elements of the tensor.
    """
    x = torch.ones(elements, device=world.device)
    streams = Streams(0)
    replicated = InStream(nn.Dropout(0.5), streams, "replicated", "blocks.0.mlp_dropout")
    sharded = InStream(nn.Dropout(0.5), streams, "sharded", "blocks.0.attention.core")
    streams.at(step=0)
    same = unlike_rank_0(replicated(x))
    torch.rand(world.rank, device=world.device)  # a rank that draws for itself stays in step
    later = unlike_rank_0(replicated(x))
    differ = unlike_rank_0(sharded(x))
    torch.manual_seed(0)
    alike = unlike_rank_0(F.dropout(x, 0.5))
    torch.manual_seed(world.rank)
    drifted = unlike_rank_0(F.dropout(x, 0.5))
    n, half, source = world.size, elements / 2, "Shoeybi et al. 2019, appendix B"
    near = 12 / elements**0.5  # 12 standard deviations of √elements/2, in elements/2
    claims = [
        Claim("replicated: elements dropped on other ranks only", "0", 0, max(same), "1", source, "compared"),
        Claim("the same after ranks drew different numbers", "0", 0, max(later), "1", source, "compared"),
        Claim("gradients that recomputation changes", "0", 0, recomputed(streams, x), how="compared"),
    ]
    for what, formula, predicted, measured, tolerance in (
        ("sharded: elements of a rank's mask unlike rank 0's", "2p(1−p) N", half, differ, near),
        ("one seed, no streams: heads' masks unlike rank 0's", "0: they drop the same weights", 0, alike, 0.0),
        ("a seed for each rank, no streams: copies' elements apart", "2p(1−p) N", half, drifted, near),
    ):
        if n == 1:
            claims.append(Claim.needs_ranks(2, what, formula, source))
        else:
            other = measured[max(world.rank, 1)]
            claims.append(Claim(what, formula, predicted, other, "1", source, "compared", tolerance=tolerance))
    streams.at(step=2)
    with world.timed("100 dropouts in a stream", 100, "dropouts"):
        for _ in range(100):
            replicated(x)
    return claims


def unlike_rank_0(mine: Tensor) -> list[int]:
    """For each rank, how many elements of its tensor are not those of rank 0."""
    everyone = gather_objects(mine.detach().cpu())
    return [int((other != everyone[0]).sum()) for other in everyone]


def recomputed(streams: Streams, x: Tensor) -> int:
    """Elements of gradients that change when two micro-batches, forward both before backward, are computed again."""
    layers = [InStream(nn.Dropout(0.5), streams, stream, stream) for stream in get_args(Stream)]
    gradients = []
    for again in (False, True):
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        losses = []
        for micro_batch, each in enumerate(inputs):
            streams.at(1, micro_batch)
            forward = nn.Sequential(*layers)
            losses.append((checkpoint(forward, each, use_reentrant=False) if again else forward(each)).sum())
        for loss in losses:
            loss.backward()
        gradients.append(torch.cat([each.grad for each in inputs if each.grad is not None]))
    return int((gradients[0] != gradients[1]).sum())


if __name__ == "__main__":
    run(demo)
