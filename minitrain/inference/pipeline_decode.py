"""Decoding in a pipeline: several groups of sequences are on their way, one in each stage.

**Idea.** A token needs all stages one after another, and the next token of the same sequence needs that token. So a
single group of sequences keeps one stage busy and p − 1 idle. With p groups each stage always has one to work on: when
the first group's token comes back, the first stage has just finished the last group.
**Source.** Derived: the round of groups is that of the micro-batches of Narayanan et al. 2021, §2.2, without backward.
**Sent.** For each token and sequence the activations, h numbers, over each of the p − 1 boundaries, and the token back.
**Cost.** A stage keeps the cache of its own layers only, 1/p of it, for all groups. A token takes as long as on one
device, and the messages; p groups together write p times as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minitrain.comm.messages import Group, exchange, rank_and_size


@torch.no_grad()
def decode(
    stage: Callable[[int, Tensor], Tensor],
    prompts: Sequence[Tensor],
    count: int,
    template: Tensor,
    group: Group = None,
) -> list[Tensor]:
    """Continue each group of sequences with its likeliest tokens.

    Args:
        stage: This rank's layers, called with a group's number, whose cache they use, and the new tokens [batch, new]
            or activations [batch, new, hidden].
        prompts: A group's tokens each, [batch, seq]; on all ranks.
        count: Tokens to write, at least 1.
        template: The shape [1, 1, hidden] and dtype of activations.
        group: The pipeline's ranks; None means everyone.

    Returns:
        On the last rank the new tokens of each group, [batch, count]; on the others nothing.
    """
    rank, ranks = rank_and_size(group)
    before, after = (rank - 1) % ranks, (rank + 1) % ranks
    first, last = rank == 0, rank == ranks - 1
    # Until a group's next token: it passes all stages, and all groups have their turn.
    ticks = max(ranks, len(prompts))

    def turn(rank: int, tick: int) -> tuple[int, int | None]:
        """The step and group on which a stage works at a tick; no group where it is idle."""
        step, number = divmod(tick - rank, ticks)
        return step, number if step in range(count) and number < len(prompts) else None

    inputs, nothing = dict(enumerate(prompts)), template.new_empty(0)
    written: list[list[Tensor]] = [[] for _ in prompts]
    for tick in range((count - 1) * ticks + len(prompts) + ranks - 1):
        leaving = arriving = nothing
        step, number = turn(rank, tick)
        if number is not None:
            # The whole prompt the first time, and then a token of each sequence.
            x = stage(number, inputs[number])
            if last:
                x = x[:, -1:].argmax(-1)  # [batch, 1]
                written[number].append(x)
            assert last or (x.shape[2:], x.dtype) == (template.shape[2:], template.dtype), (
                "activations are not like the template"
            )
            # The last token of all is the input of no stage.
            if not last or step < count - 1:
                leaving = x.contiguous()
        step, number = turn(before, tick)
        if number is not None and (not first or step < count - 1):
            batch, new = len(prompts[number]), prompts[number].shape[1] if step == 0 else 1
            shape = (batch, new, template.shape[-1])
            # Activations of the stage before, or the token that the last stage has chosen.
            arriving = prompts[number].new_empty(batch, 1) if first else template.new_empty(shape)
            inputs[number] = arriving
        # Round the ring, both at once: if all stages first sent, each might wait for the next one to receive.
        exchange(leaving, after, arriving, before, group).wait()
    return [torch.cat(tokens, dim=1) for tokens in written] if last else []


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
