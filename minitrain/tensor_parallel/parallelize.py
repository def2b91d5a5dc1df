"""A whole GPT over several ranks: every layer put in place of its one-device form, and a list of what was done.

**Idea.** Nothing new is computed here. Token embedding, attention, MLP, head and loss of the reference are replaced one
by one, and what is left whole on every rank is said as well: a matrix that was forgotten costs memory and no error.

**Source.** Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", §3 and figures 3 and 4.

**What each rank holds.** 1/n of the token table and of every matrix of a block; all of the position table, the norms
and the biases that are added after a sum.

**What is sent, when and why.** Forward: an all-reduce for the embedding, two for each layer, and an all-gather of three
numbers a token for the loss. Backward: two all-reduces for each layer, and one for the head. After the last backward of
a step `layout.sum_partial_gradients` adds the gradients of shared key and value heads, if there are any.

**Cost.** `minitrain.costs.tensor_parallel` for the layers, `minitrain.costs.vocabulary` for both ends.

**Also called.** `parallelize_module` with a plan (PyTorch DTensor), `tp_plan` (Hugging Face), injection (DeepSpeed).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn

from minitrain.collectives.full import native
from minitrain.models import gpt as reference
from minitrain.tensor_parallel.dropout_rng import check_dropout, place_dropout
from minitrain.tensor_parallel.full.attention import parallel_attention, parallel_mlp
from minitrain.tensor_parallel.full.checks import place
from minitrain.tensor_parallel.full.mappings import Collectives
from minitrain.tensor_parallel.full.parameter_layout import copies, is_partial, sharded_dim, shards
from minitrain.tensor_parallel.full.vocab_parallel import (
    VocabParallelEmbedding,
    VocabParallelHead,
    VocabParallelLoss,
    gather_logits,
)


@dataclass(frozen=True)
class Row:
    """What became of a parameter.

    Attributes:
        name: Its name, the same before and after.
        how: How it lies over the ranks, in words.
        before: Its shape on one device.
        now: Its shape on this rank.
    """

    name: str
    how: str
    before: tuple[int, ...]
    now: tuple[int, ...]


@dataclass(frozen=True)
class Replaced:
    """What `parallelize` did; printed, it lists every parameter.

    Attributes:
        parameters: Every parameter of the model.
        modules: Every module that was replaced, by name, with its class now.
    """

    parameters: list[Row]
    modules: dict[str, str]

    @property
    def replicated(self) -> list[str]:
        """Names of the parameters that every rank holds whole."""
        return [row.name for row in self.parameters if row.how.startswith(REPLICATED)]

    def __str__(self) -> str:
        """A line for each parameter; those that are alike in all layers share one."""
        layers: dict[Row, list[int]] = {}
        for row in self.parameters:
            head, _, rest = row.name.partition("blocks.")
            number, _, name = rest.partition(".")
            key = replace(row, name=f"{head}blocks.#.{name}") if rest else row
            layers.setdefault(key, []).append(int(number or 0))
        lines = [("parameter", "on one device", "on this rank", "how")]
        for row, numbers in layers.items():
            those = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
            lines.append((row.name.replace("#", those), _shape(row.before), _shape(row.now), row.how))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )


REPLICATED = "replicated"


def parallelize(
    gpt: reference.GPT,
    group: dist.ProcessGroup | None = None,
    *,
    collectives: Collectives = native,
    check: bool | None = None,
) -> Replaced:
    """Change a GPT, in place, so that each rank holds and computes its part. No tensor is sent.

    Parameters keep their names. A head that was tied to the token embedding stays so. With targets the model returns
    this rank's logits `[batch, seq, vocabulary/tp]`, and the loss, equal on all ranks. Without targets the logits are
    gathered, so that `generate` draws the same tokens on all ranks if their generators are alike.

    Args:
        gpt: The same weights on all ranks; afterwards it takes the same tokens on all. A block's attention or MLP of
            another class than the reference's is left as it is. If it has dropout, call
            `counter_rng.set_position(seed, step, first_token)` (`minitrain.models.counter_rng`) before each forward.
        group: The tensor-parallel ranks; None means everyone.
        collectives: Who carries the tensors: `native`, or `ring` to let the ledger see every byte.
        check: Compare across ranks what must be equal. None: in demos and notebooks only.

    Returns:
        What was replaced, and what every rank still holds whole.

    Raises:
        ValueError: Before anything is changed: this rank is not in the group; heads, key and value heads or the MLP's
            width do not divide by the ranks; there is dropout and attention is fused; `gpt` is parallel already; with
            checking also if weights differ between ranks.
    """
    rank, ranks = place(group)
    if isinstance(gpt.embedding.tokens, VocabParallelEmbedding):
        raise ValueError("gpt is tensor-parallel already; give one that was made for one device")
    before = {name: tuple(parameter.shape) for name, parameter in gpt.named_parameters()}
    classes = {name: type(module) for name, module in gpt.named_modules()}
    # All is made before any is put in place, so that an error leaves the model as it was.
    check_dropout(gpt)
    made = _make(gpt, group, collectives, check)
    for name, module in made.items():
        gpt.set_submodule(name, module)
    place_dropout(gpt, rank)
    gpt.register_forward_hook(WholeLogits(gpt.config.vocabulary, group, collectives))
    rows = [Row(name, _how(p, ranks), before[name], tuple(p.shape)) for name, p in gpt.named_parameters()]
    changed = {n: type(m).__name__ for n, m in gpt.named_modules() if classes.get(n) is not type(m)}
    return Replaced(rows, changed)


def _make(
    gpt: reference.GPT, group: dist.ProcessGroup | None, collectives: Collectives, check: bool | None
) -> dict[str, nn.Module]:
    """The parallel form of every module that has one, by name."""
    common: Any = {"collectives": collectives, "check": check}
    tokens = VocabParallelEmbedding.from_embedding(gpt.embedding.tokens, group, **common)
    shard = tokens.weight if gpt.head.weight is gpt.embedding.tokens.weight else None  # tied, it is the very same
    made: dict[str, nn.Module] = {
        "embedding.tokens": tokens,
        "head": VocabParallelHead.from_linear(gpt.head, group, shard=shard, **common),
        "loss": VocabParallelLoss(gpt.config.vocabulary, group, reference.IGNORE, **common),
    }
    for name, part in gpt.named_modules():
        if type(part) is reference.Attention:
            made[name] = parallel_attention(part, group, **common)
        elif type(part) is reference.MLP:
            made[name] = parallel_mlp(part, group, **common)
    return made


class WholeLogits:
    """A forward hook of the GPT: without targets, the logits are gathered. With targets nobody needs them whole."""

    def __init__(self, vocabulary: int, group: dist.ProcessGroup | None, collectives: Collectives):
        self.vocabulary, self.group, self.collectives = vocabulary, group, collectives

    def __call__(self, gpt: nn.Module, arguments: Any, result: tuple[Tensor, Tensor | None]) -> Any:
        logits, loss = result
        if loss is not None:
            return result
        return gather_logits(logits, self.vocabulary, self.group, collectives=self.collectives), None

    def __deepcopy__(self, memo: Any) -> WholeLogits:
        return self  # a process group cannot be copied, and a copied model talks to the same ranks


def piece_of(
    whole: Shaped[Tensor, "*whole"], parameter: Shaped[Tensor, "*piece"], group: dist.ProcessGroup | None = None
) -> Shaped[Tensor, "*piece"]:
    """What this rank holds of a whole tensor that is cut as `parameter` is: a weight, a gradient, an optimizer's state.

    Args:
        whole: As on one device.
        parameter: This rank's; it says where it is cut (`minitrain.tensor_parallel.full.parameter_layout`).
        group: The tensor-parallel ranks; None means everyone.

    Returns:
        In memory of its own; zero where the vocabulary is padded.
    """
    rank, ranks = place(group)
    dim = sharded_dim(parameter)
    if dim is None:
        return whole.detach().clone()
    held, length = parameter.shape[dim], whole.shape[dim]
    start = min(rank * shards(parameter, ranks) // ranks * held, length)
    piece = whole.new_zeros(parameter.shape)
    real = min(held, length - start)
    piece.narrow(dim, 0, real).copy_(whole.detach().narrow(dim, start, real))
    return piece


def _how(parameter: Tensor, ranks: int) -> str:
    dim = sharded_dim(parameter)
    partial = ", gradients to be summed" if is_partial(parameter) else ""
    if dim is None or shards(parameter, ranks) == 1:
        return f"{REPLICATED}{partial}"
    held = copies(parameter, ranks)
    shared = f", each on {held} ranks" if held > 1 else ""
    return f"dim {dim} in {shards(parameter, ranks)}{shared}{partial}"


def _shape(sizes: tuple[int, ...]) -> str:
    return " × ".join(map(str, sizes))


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
