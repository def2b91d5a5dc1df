"""Decoding in a pipeline: several groups of sequences are on their way, one in each stage.

**Idea.** A token needs all stages one after another, and the next token of the same sequence needs that token. So a
single group of sequences keeps one stage busy and p − 1 idle. With p groups each stage always has one to work on: when
the first group's token comes back, the first stage has just finished the last group.
**Source.** Pope et al. 2022, "Efficiently Scaling Transformer Inference", §3; the round of groups is that of Narayanan
et al. 2021's micro-batches without backward.
**Sent.** For each token and sequence the activations, h numbers, over each of the p − 1 boundaries, and the token back.
**Cost.** A stage keeps the cache of its own layers only, 1/p of it, for all groups. A token takes as long as on one
device, and the messages; p groups together write p times as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minitrain.comm.messages import Group, place, receive, send


@torch.no_grad()
def decode(
    stage: Callable[[int, Tensor], Tensor],
    prompts: Sequence[Tensor],
    count: int,
    template: Tensor,
    group: Group = None,
    back: Group = None,
) -> list[Tensor]:
    """Continue each group of sequences with its likeliest tokens.

    Args:
        stage: This rank's layers, called with a group's number, whose cache they use, and the new tokens [batch, new]
            or activations [batch, new, hidden].
        prompts: A group's tokens each, [batch, seq]; on all ranks.
        count: Tokens to write, at least 1.
        template: The shape [1, 1, hidden] and dtype of activations.
        group: The pipeline's ranks; None means everyone.
        back: The first rank and the last, for the way back. In a pipeline of two, tokens and activations travel
            between the same ranks; in one queue under NCCL, each would wait for the other's turn.

    Returns:
        On the last rank the new tokens of each group, [batch, count]; on the others nothing.
    """
    rank, ranks = place(group)
    first, last = rank == 0, rank == ranks - 1
    written: list[list[Tensor]] = [[] for _ in prompts]
    leaving = []  # messages under way, whose memory they still need
    for step in range(count):
        for number, prompt in enumerate(prompts):
            batch, new = len(prompt), prompt.shape[1] if step == 0 else 1
            if not first:
                # What the stage before has made of this group's new tokens.
                x = template.new_empty(batch, new, template.shape[-1])
                receive(x, rank - 1, group).wait()
            elif step == 0:
                x = prompt
            elif last:
                x = written[number][-1]
            else:
                # The token that the last stage has chosen, while this one worked on the other groups.
                x = prompt.new_empty(batch, 1)
                receive(x, 1, back).wait()
            # The whole prompt the first time, and then a token of each sequence.
            x = stage(number, x)
            if last:
                x = x[:, -1:].argmax(-1)  # [batch, 1]
                written[number].append(x)
            # The stage goes on with the next group while this one travels.
            if not last:
                leaving.append(send(x.contiguous(), rank + 1, group))
            elif not first and step < count - 1:
                leaving.append(send(x, 0, back))
    for handle in leaving:
        handle.wait()
    return [torch.cat(tokens, dim=1) for tokens in written] if last else []


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
