"""A ring all-reduce of gradients in 8 bits, whose rounding errors are kept and sent in the next step.

**Idea.** Each message has one byte per element, and a scale per block. What rounding loses stays on the rank that
rounded, as a residual, and is added to its gradients of the next step (error feedback). So nothing is ever lost: all
that was received plus all residuals is the sum of all gradients.

**Source.** Seide et al. 2014, "1-bit stochastic gradient descent", §3, for error feedback; Dettmers 2016, "8-bit
approximations for parallelism in deep learning", for 8 bits. PowerSGD (Vogels et al. 2019) is the low-rank other way.
**Sent.** 2(n−1)/n · (1 + 4/block) bytes per element, a quarter of float32's ring.
**Cost.** One residual as large as the gradient; each of n roundings is off by at most half a step of its block.
Also called gradient compression, quantization, 1-bit or 8-bit communication.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.collectives.ring import cut
from minitrain.comm.messages import Group, exchange, rank_and_size

BLOCK = 256


def quantize(x: Tensor, block: int = BLOCK) -> Tensor:
    """A flat tensor as bytes: one for each element, rounded to 1/127 of its block's largest, then the scales."""
    blocks = torch.nn.functional.pad(x.float(), (0, -len(x) % block)).view(-1, block)
    # The largest of a block becomes ±127, and all others keep their proportion to it.
    scales = blocks.abs().amax(1, keepdim=True) / 127  # (blocks, 1)
    codes = (blocks / scales.clamp_min(1e-38)).round().to(torch.int8)
    return torch.cat([codes.flatten()[: len(x)].view(torch.uint8), scales.flatten().view(torch.uint8)])


def dequantize(message: Tensor, elements: int, block: int = BLOCK) -> Tensor:
    codes = message[:elements].view(torch.int8).float()
    # Copied, since float32 must begin at a multiple of 4 bytes.
    scales = message[elements:].clone().view(torch.float32)
    return codes * scales.repeat_interleave(block)[:elements]


def all_reduce(gradient: Tensor, residual: Tensor, group: Group = None) -> Tensor:
    """The sum over ranks of flat gradients and residuals; what this rank's roundings lost is left in `residual`.

    Infinity or NaN in a gradient makes the sum of its block NaN on all ranks, in this step alone.
    """
    assert residual.element_size() >= 4, "a residual in 16 bits would be rounded itself"
    rank, ranks = rank_and_size(group)
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    chunks, lost = cut(gradient + residual, ranks), cut(residual, ranks)

    def rounded(number: int) -> Tensor:
        message = quantize(chunks[number])
        lost[number].copy_(chunks[number] - dequantize(message, len(chunks[number])))
        # After infinity or NaN nothing is left of the block; else it would be NaN in all later steps, too.
        lost[number].nan_to_num_(0.0, 0.0, 0.0)
        return message

    for step in range(ranks - 1):
        leaving, arriving = (rank - 1 - step) % ranks, (rank - 2 - step) % ranks
        buffer = torch.empty_like(quantize(chunks[arriving]))
        exchange(rounded(leaving), right, buffer, left, group).wait()
        chunks[arriving].add_(dequantize(buffer, len(chunks[arriving])))
    # Each rank rounds its finished chunk once, and all pass on the same bytes: all ranks end with the same bits.
    messages = [quantize(chunk) for chunk in chunks]
    messages[rank] = rounded(rank)
    for step in range(ranks - 1):
        leaving, arriving = (rank - step) % ranks, (rank - 1 - step) % ranks
        exchange(messages[leaving], right, messages[arriving], left, group).wait()
    return torch.cat([dequantize(m, len(c)) for m, c in zip(messages, chunks, strict=True)])


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
