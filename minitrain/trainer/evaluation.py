"""Checks between steps: the loss on held-out text, and text that the model writes.

**Idea.** Forward alone, through all stages where there is a pipeline, without dropout and routers' noise. A sample is
the same in every layout: all ranks go on with the token that the first rank at the model's end has drawn. Keys and
values of earlier tokens are kept, so that each token goes through the model once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from minitrain.comm.comm import Comm
from minitrain.comm.messages import all_gather, receive, send
from minitrain.composition.model import DTYPES, HALVES
from minitrain.composition.ordered_sums import evaluated
from minitrain.composition.step import Training
from minitrain.context_parallel.full.places import held
from minitrain.craft import probes
from minitrain.data.text import Batch
from minitrain.inference.kv_cache import KVCache, add_caches
from minitrain.tensor_parallel.full.vocab_parallel import gather_logits

COLDEST = 1e-6  # below it logits would overflow, and the likeliest token is all but certain
# What caches take the place of: attention's cores, and positions of embedding and rotary angles.
REPLACED = ("core", "places")


@torch.no_grad()
def evaluate(training: Training, batches: Iterable[Batch]) -> float:
    """The mean loss over some batches, each shared by the data-parallel ranks, which must divide it.

    Ranks along cp share each sequence.
    """
    dp, place = training.settings.layout.dp, training.axes.place["dp"]
    means: list[Tensor | None] = []
    with _evaluating(training):
        for inputs, targets in batches:
            mine = training.own_tokens(inputs.chunk(dp)[place], targets.chunk(dp)[place])
            means.append(_loss(training, *(part.to(training.device) for part in mine)))
    if training.losses:
        # With ordered sums, in the order of batches in every layout.
        return evaluated(means, Comm(training.axes.dp, check=False))
    nothing = torch.zeros((), dtype=torch.float64, device=training.device)
    total = sum((training.share_of_mean(mean) for mean in means), nothing)
    dist.all_reduce(total)  # every rank must know the mean
    return total.item() / len(means)


@torch.no_grad()
def log_probability(training: Training, prompt: Sequence[int], continuation: Sequence[int]) -> float:
    """As `minitrain.craft.probes.log_probability`, in any layout, the same on all ranks; every rank calls it."""
    text, positions = [*prompt, *continuation], training.settings.model.sizes.positions
    with _evaluating(training):
        tokens = _padded(training, text[:-1], positions)  # no earlier token sees the padding
        logits = _of_all_tokens(training, _logits(training, training.own_tokens(tokens, tokens)[0]))
    found = torch.zeros(1, dtype=torch.float64, device=training.device)
    if logits is not None:
        rows = logits[:, : len(text) - 1].cpu()
        found[0] = probes.log_probability(lambda _: rows, prompt, continuation, positions)
    return _from_end(training, found).item()


@torch.no_grad()
def generate(
    training: Training,
    prompt: Iterable[int],
    count: int,
    temperature: float = 0.8,
    cache: bool = True,
    *,
    top_k: int | None = None,
    seed: int | None = None,
    vocabulary: int | None = None,
) -> list[int]:
    """Continue a text, token by token; the same on all ranks, whatever the layout.

    While the text fits the model's positions, every layer keeps its keys and values (`minitrain.inference.kv_cache`),
    so that a forward takes the prompt once, and then one token at a time. Afterwards, or where `_continues` is false,
    each forward takes the whole window. The logits are the same either way, except for rounding.

    Args:
        prompt: At least one token. The model sees the last `positions` tokens of the text.
        count: Tokens to write, which are returned.
        temperature: Logits are divided by it; 0 takes the likeliest token.
        top_k: Draw only from so many likeliest tokens; None: from all.
        seed: Of the draws; None: the training's.
        vocabulary: Draw only tokens below it, where the model's vocabulary is larger than that of its data; None: the
            model's.

    Raises:
        ValueError: On every rank, before anything is sent: there is nothing to continue, a token is not in the model's
            vocabulary, or a number is negative.
    """
    sizes, text = training.settings.model.sizes, [int(token) for token in prompt]
    if not text:
        raise ValueError("prompt is empty and cannot be continued; give at least one token")
    if not 0 <= min(text) <= max(text) < sizes.vocabulary:
        raise ValueError(
            f"prompt has tokens {min(text)} to {max(text)}, and the model knows 0 to {sizes.vocabulary - 1}"
        )
    if count < 0 or not temperature >= 0:
        raise ValueError(f"count={count} and temperature={temperature} must not be negative")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} leaves no token to draw; use at least 1")
    length, given, end = sizes.positions, len(text), len(text) + count
    # On the CPU, whose numbers are the same on every machine and rank.
    generator = torch.Generator().manual_seed(training.settings.steps.seed if seed is None else seed)
    draw = Draw(vocabulary or sizes.vocabulary, temperature, top_k, generator)
    with _evaluating(training):
        if cache and _continues(training):
            layout = training.settings.layout
            multiple = layout.tp if layout.sequence_parallel else 1  # its ranks must divide the new tokens
            with _with_caches(training, length) as caches:
                seen = 0
                # With the padding, which takes places in the cache as well.
                while len(text) < end and seen + -(-(len(text) - seen) // multiple) * multiple <= length:
                    logits = _logits(training, _padded(training, text[seen:], multiple))
                    new, seen = len(text) - seen, len(text)
                    for each in caches:
                        each.tokens = seen  # the padding is forgotten: the next tokens take its place
                    text.append(_draw(training, logits, new - 1, draw))
        # The window slides, so every token gets another position, and what was kept is of no use any more.
        while len(text) < end:
            window = text[-length:]
            tokens = _padded(training, window, length)  # no earlier token sees the padding
            own, _ = training.own_tokens(tokens, tokens)
            logits = _of_all_tokens(training, _logits(training, own))
            text.append(_draw(training, logits, len(window) - 1, draw))
    return text[given:]


class Draw(NamedTuple):
    """How a token is chosen by its logits; see `generate`."""

    vocabulary: int
    temperature: float
    top_k: int | None
    generator: torch.Generator

    def __call__(self, logits: Float[Tensor, " vocabulary"]) -> int:
        # Tokens beyond it were never trained. In float32, since 8 bits would make many logits equal.
        row = logits[: self.vocabulary].float().cpu()
        if self.temperature < COLDEST:
            return int(row.argmax())
        if self.top_k and self.top_k < len(row):
            # Tokens as likely as the k-th stay, so that no order among equals is needed.
            row = row.masked_fill(row < row.topk(self.top_k).values[-1], -torch.inf)
        return int(torch.multinomial((row / self.temperature).softmax(-1), 1, generator=self.generator))


def _continues(training: Training) -> bool:
    """Whether a text can be continued from caches: what a token's layers compute must not depend on later tokens.

    An expert that chooses its tokens chooses among all of them. And a block that is compiled would be compiled again
    for each length of the cache.
    """
    model, steps = training.settings.model, training.settings.steps
    return not steps.compile and not (model.sizes.experts and model.sizes.router == "expert_choice")


@contextmanager
def _with_caches(training: Training, longest: int) -> Iterator[list[KVCache]]:
    """The stages of this rank, with a cache of its heads in each layer.

    Ranks along cp hold all weights. Here each of them also keeps all tokens, as ranks along dp do.
    """
    stages = nn.ModuleList(training.part.stages)
    replaced = [(part, n, child) for part in stages.modules() for n, child in part.named_children() if n in REPLACED]
    try:
        yield add_caches(stages, longest)
    finally:
        for part, name, child in replaced:
            # Also after an error, because a training goes on with these modules.
            setattr(part, name, child)


def _padded(training: Training, text: list[int], multiple: int) -> Int[Tensor, "1 seq"]:
    """The tokens of a text, with zeros at the end up to a multiple."""
    return torch.tensor([text + [0] * (-len(text) % multiple)], device=training.device)


def _draw(training: Training, logits: Tensor | None, at: int, draw: Draw) -> int:
    """The token that follows the one at an index, the same on all ranks."""
    drawn = torch.zeros(1, dtype=torch.int64, device=training.device)
    if logits is not None:
        drawn[0] = draw(logits[0, at])
    return int(_from_end(training, drawn))


def _from_end(training: Training, found: Tensor) -> Tensor:
    """On all ranks, what the first rank that has the model's end has found."""
    schedule = training.part.schedule
    end = training.axes.grid[schedule.rank_of(schedule.stages - 1), 0, 0, 0].item()
    # One rank decides: another's logits may differ in the last bits, and with them the token.
    dist.broadcast(found, int(end))
    return found


def _loss(training: Training, inputs: Tensor, targets: Tensor) -> Tensor | None:
    """The mean loss without gradients, on ranks that have the model's end."""
    if training.pipeline is None:
        return training.gradients.model(inputs, targets)[1]
    outputs = _through_stages(training, inputs)
    return None if outputs is None else training.part.loss(outputs, targets)


def _logits(training: Training, tokens: Int[Tensor, "batch seq"]) -> Tensor | None:
    """The logits over the whole vocabulary, on ranks that have the model's end."""
    if training.pipeline is None:
        return training.gradients.model(tokens)[0]
    outputs = _through_stages(training, tokens)
    if outputs is None or training.settings.layout.tp == 1:
        return outputs
    # The whole model gathers them by itself, its stages do not.
    return gather_logits(outputs, training.settings.model.sizes.vocabulary, training.axes.tp)


def _of_all_tokens(training: Training, logits: Tensor | None) -> Tensor | None:
    """The logits of one whole sequence, [1, seq, vocabulary], from those of the tokens that each rank along cp has."""
    layout = training.settings.layout
    if logits is None or layout.cp == 1:
        return logits
    seq = training.settings.model.sizes.positions
    order = torch.cat([held(layout.cp_mode, seq, place, layout.cp) for place in range(layout.cp)])
    rows = all_gather(logits[0].contiguous(), training.axes.cp).wait()  # [seq, vocabulary], ordered by rank
    assert rows is not None
    # With zigzag, the order of ranks is not that of positions.
    return rows[order.argsort()].unsqueeze(0)


def _through_stages(training: Training, tokens: Int[Tensor, "batch seq"]) -> Tensor | None:
    """Forward only: each stage takes what the one before sends; what the last gives, on its rank."""
    schedule, place, group = training.part.schedule, training.axes.place["pp"], training.axes.pp
    sizes, layout, x = training.settings.model.sizes, training.settings.layout, tokens
    seq = tokens.shape[1] // (layout.tp if layout.sequence_parallel else 1)
    name = training.settings.steps.dtype
    dtype = HALVES.get(name, DTYPES[name])
    for number, stage in zip(schedule.stages_of(place), training.part.stages, strict=True):
        # Between two chunks of one rank nothing is sent.
        if number and (before := schedule.rank_of(number - 1)) != place:
            x = torch.empty(tokens.shape[0], seq, sizes.hidden, dtype=dtype, device=training.device)
            receive(x, before, group).wait()  # the activations that the stage before has made
        x = stage(x)
        if number + 1 < schedule.stages and (after := schedule.rank_of(number + 1)) != place:
            send(x.contiguous(), after, group).wait()  # and on to the next
    return x if training.last else None


@contextmanager
def _evaluating(training: Training) -> Iterator[None]:
    """All parameters as of the last step, and without dropout and routers' noise."""
    training.gradients.wait()
    for stage in training.part.stages:
        stage.eval()
    try:
        yield
    finally:
        for stage in training.part.stages:
            # Also after an error: dropout must not stay off.
            stage.train()
