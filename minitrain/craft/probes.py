"""Probes: how likely the model finds a continuation, asked again and again during a run.

**Idea.** The loss says how a model does on average, not what it knows. A probe is a prompt and a continuation; the
product of the probabilities of the continuation's tokens, each after all tokens before it, says how much of it has
been learned. A contrast pair has two continuations of equal length of which one is right: the model prefers the one
with the larger probability. A small model's answers to questions of knowledge are chance, but spelling, grammar and
quotes can be probed from the first hundred steps.

**Source.** Warstadt et al. 2020, "BLiMP", §3, for minimal pairs; Carlini et al. 2019, "The Secret Sharer", §4, for the
probability of one text as the measure of what was memorized.
**Cost.** One forward per probe. Also called minimal pairs, log-likelihood scoring (`lm-evaluation-harness`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Model = Callable[[Tensor], Tensor]  # tokens [1, seq] to logits [1, seq, vocabulary]


@torch.no_grad()
def log_probability(model: Model, prompt: Sequence[int], continuation: Sequence[int], positions: int) -> float:
    """The logarithm of the probability that these tokens follow the prompt."""
    # A batch of one text.
    text = torch.tensor([[*prompt, *continuation]])
    assert len(prompt) and len(continuation), f"{len(prompt)=} and {len(continuation)=} must be at least 1"
    assert text.shape[1] - 1 <= positions, f"a probe of {text.shape[1]} tokens does not fit {positions=}, and one more"
    # Logits at a position are those of the token after it, so the last token is not fed in.
    logits = model(text[:, :-1])  # [1, seq, vocabulary]
    each = F.log_softmax(logits[0].double(), dim=-1)[len(prompt) - 1 :]  # [continuation, vocabulary]
    return each.gather(1, text[0, len(prompt) :, None]).sum().item()


def prefers(model: Model, prompt: Sequence[int], right: Sequence[int], wrong: Sequence[int], positions: int) -> float:
    """How much likelier the right continuation is, as the logarithm of a ratio: above 0 where the model prefers it."""
    assert len(right) == len(wrong), f"{len(right)=} and {len(wrong)=}: the shorter one would nearly always be likelier"
    return log_probability(model, prompt, right, positions) - log_probability(model, prompt, wrong, positions)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
