"""Loss by source: of a mixture, which text is learned; and in a unit that does not depend on the tokenizer.

**Idea.** A mean loss hides that one source gets worse while another gets better. So the losses of tokens are added up
by the source of their sample, or by their position in it, over all ranks. Losses per token of two tokenizers cannot be
compared, since one has longer tokens. Bits per byte can: they ask what the whole text costs, divided by its bytes.

**Source.** Gao et al. 2020, "The Pile", §3.1, for bits per byte, there of each of 22 sources.
**Sent.** One all-reduce of two numbers for each source.
**Cost.** The loss of each token must be there, `reduction="none"`. Also called channel loss, per-domain loss.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce


def mean_by(losses: Tensor, labels: Tensor, count: int, group: Group = None) -> tuple[Tensor, Tensor]:
    """The mean loss under each label over all ranks, and how many tokens have it.

    Losses are those of this rank's tokens, [samples, seq]. Labels from 0 to count − 1
    are numbers of sources, or positions. Without a token the mean is NaN.
    """
    labels, order = labels.expand_as(losses).flatten().sort(stable=True)
    tokens = labels.bincount(minlength=count)
    # Those of a label one after the other. (On a GPU index_add_ adds in any order, and so gives other last bits.)
    total = torch.segment_reduce(losses.flatten()[order].double(), "sum", lengths=tokens)
    sums = torch.stack([total, tokens.double()])
    # Sums, not means: ranks have different numbers of tokens of a source.
    all_reduce(sums, group).wait()
    return sums[0] / sums[1], sums[1]


def perplexity(loss: float) -> float:
    """Of a loss in nats per token: among how many equally likely tokens the model would be as unsure."""
    return math.exp(loss)


def bits_per_byte(loss: float, tokens: int, size: int) -> float:
    """Of a text of `size` bytes in `tokens` tokens, with this mean loss in nats per token."""
    # All tokens of the text together cost loss · tokens nats; a bit has ln 2.
    return loss * tokens / math.log(2) / size


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
