"""For the notebook: the bytes that a layer keeps for backward, by operation, in each of the four ways.

In 16 bits, with dropout and written-out attention, as in the account of Korthikanti et al. 2022.
"""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from minitrain.comm.memory import storage_bytes
from minitrain.costs import activations
from minitrain.costs import sequence_parallel as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.pictures.memory_bar import LOOKS
from minitrain.lessons.sequence_parallel.common import OURS, VOCABULARY, Parallelize, Trial, Way
from minitrain.models import counter_rng
from minitrain.recomputation.checkpoint import recompute

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kept = dict[Way, dict[str, int]]
"""Bytes that a layer keeps, by way and term."""

QKV = "query, key, value projections: their input"

# The module that saves a tensor, and the paper's name for it. Inside the core of attention, the operation decides.
_TERMS = {
    "attention_norm": "attention norm: its input",
    "attention": QKV,
    "attention.query": QKV,
    "attention.key": QKV,
    "attention.value": QKV,
    "attention.core masked_fill": costs.MASK,
    "attention.core softmax": "softmax: its output",
    "attention.core.dropout": "softmax dropout: its mask",
    "attention.output": "output projection: its input",
    "attention_dropout": "attention dropout: its mask",
    "mlp_norm": "MLP norm: its input",
    "mlp.up": "up projection: its input",
    "mlp": "GELU: its input",
    "mlp.down": "down projection: its input",
    "mlp_dropout": "MLP dropout: its mask",
}


class KeptByOperation(TorchFunctionMode):
    """Counts the bytes that autograd keeps of a forward, by the paper's terms: `with KeptByOperation(block) as …`.

    Each storage counts once, for the first operation that saves it; parameters do not count.

    Args:
        block: A block of the GPT, on one device or divided over ranks.
        seq: Tokens in a whole sequence.

    Attributes:
        terms: Bytes by term, in the order in which they were saved.
    """

    def __init__(self, block: nn.Module, seq: int):
        super().__init__()
        self.block, self.seq, self.terms = block, seq, {}
        self._seen = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
        self._alive: list[Tensor] = []  # keeps the storages alive, so that no address is used twice
        self._modules: list[str] = []  # the modules whose forward is running, by name, the innermost last
        self._operations: list[str] = []  # the functions of torch that are running
        self._weighed = False  # whether the core that is running has already computed its softmax
        self._hooks = saved_tensors_hooks(self._save, lambda tensor: tensor)

    def _save(self, tensor: Tensor) -> Tensor:
        if size := storage_bytes([tensor], self._seen):
            self._alive.append(tensor.detach())
            term = self._term(tensor)
            self.terms[term] = self.terms.get(term, 0) + size
        return tensor

    def _term(self, tensor: Tensor) -> str:
        module = self._modules[-1]
        operation = f"{module} {self._operations[-1] if self._operations else ''}".strip()
        if module.endswith("norm") and tensor.shape[-1] == 1:
            return costs.STATISTICS
        if operation == "attention.core matmul":
            if not self._weighed:
                return "QKᵀ: query and key"
            scores = tensor.shape[-2:] == (self.seq, self.seq)
            return "attention over V: the dropout's output" if scores else "attention over V: the values"
        self._weighed |= operation == "attention.core softmax"
        return _TERMS.get(operation) or _TERMS.get(module) or operation  # an unknown one appears under its own name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._operations.append(getattr(func, "__name__", ""))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._operations.pop()

    def __enter__(self) -> KeptByOperation:
        self._watched = []
        for name, module in self.block.named_modules():
            self._watched.append(module.register_forward_pre_hook(partial(self._begin, name)))
            self._watched.append(module.register_forward_hook(self._end))
        self._hooks.__enter__()
        return super().__enter__()

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        self._hooks.__exit__(exc_type, exc_val, exc_tb)
        for hook in self._watched:
            hook.remove()
        self._alive.clear()

    def _begin(self, name: str, *call: Any) -> None:
        self._modules.append(name)
        self._weighed &= name != "attention.core"

    def _end(self, *call: Any) -> None:
        self._modules.pop()


def measure(trial: Trial) -> Kept:
    """The bytes that one layer keeps, in each way."""
    kept: Kept = {}
    for way in get_args(Way):
        block = trial.gpt(way, torch.bfloat16).blocks[0]
        with KeptByOperation(block, trial.sizes[1]) as counted:
            block(trial.hidden_states(way, torch.bfloat16))
        kept[way] = counted.terms
    return kept


def predicted(trial: Trial, way: Way) -> tuple[dict[str, float], dict[str, float]]:
    """The paper's count for a way, and the bytes that torch keeps beyond it, by term."""
    tensor, shards = (1 if way == "one device" else trial.world.size), way in OURS
    sizes = (*trial.sizes, trial.all_heads, tensor, shards)
    on_gpu = trial.world.device.type == "cuda"
    paper = activations.layer_terms(*sizes)
    torch_keeps = costs.kept_terms(*sizes, OURS.get(way, False), 4 if on_gpu else 2)
    return paper, {name: kept - paper.get(name, 0.0) for name, kept in torch_keeps.items()}


TABLE: dict[Way, str] = {
    "one device": "sbh(34 + 5as/h)",
    "chapter 08": "sbh(10 + 24/t + 5as/(ht))",
    "gathered again": "sbh/t · (34 + 5as/h)",
    "input kept": "sbh/t · (34 + 5as/h) + 4sbh(1 − 1/t)",
}
"""The bytes that a layer keeps, by the table of the paper."""


def beyond(way: Way, on_gpu: bool) -> str:
    """The bytes that torch keeps beyond the table: the norms' numbers and the causal mask."""
    outside = "/t" if way in OURS else ""  # for tensors outside of attention and MLP
    return f"{16 if on_gpu else 8}bs{outside} + s²"


def claims(trial: Trial, kept: Kept) -> list[Claim]:
    """Claims on the bytes that a layer keeps in all four ways: all terms together, and each by itself."""
    section = "Korthikanti et al. 2022, §4"
    made, cases = [], {}
    for way, terms in kept.items():
        paper, more = predicted(trial, way)
        each = {name: paper.get(name, 0.0) + more.get(name, 0.0) for name in {**terms, **more}}
        formula = f"{TABLE[way]}, torch: + {beyond(way, trial.world.device.type == 'cuda')}"
        what, key = f"{way}: bytes that a layer keeps", way == "gathered again"
        made.append(Claim(what, formula, sum(each.values()), sum(terms.values()), "B", section, key=key))
        unlike = [name for name, expected in each.items() if terms.get(name) != expected]
        case = f"{way}: {', '.join(unlike)}"
        cases[case] = Claim("", "0: each term", 0, len(unlike), "1", section, "compared")
    what = "terms of a layer, 16 in each way, that differ from the paper's and what torch adds"
    return [*made, fold(what, cases)]


def recomputed(trial: Trial, parallelize: Parallelize) -> list[Claim]:
    """Claims on the bytes that a layer keeps if the core of attention, or all of it, is computed again in backward."""
    found = {}
    for how in ("selective", "full"):
        block = trial.gpt("gathered again", parallelize, torch.bfloat16, DROPOUT).blocks[0]
        recompute([block.get_submodule("attention.core") if how == "selective" else block])
        counter_rng.set_position(seed=0, step=0)
        with KeptByOperation(block, trial.sizes[1]) as counted:
            block(trial.hidden_states("gathered again", torch.bfloat16))
        found[how] = sum(counted.terms.values())
    sizes = (*trial.sizes, trial.all_heads, trial.world.size, True)
    _, more = predicted(trial, "gathered again")
    scores, all_of_it = (activations.layer(*sizes, how) for how in found)
    section, numbers = "Korthikanti et al. 2022, §5", 16 if trial.world.device.type == "cuda" else 8
    what = "gathered again: bytes that a layer keeps,"
    return [
        Claim(
            f"{what} attention's core recomputed",
            f"34sbh/t, torch: + {numbers}bs/t",
            scores + more[costs.STATISTICS],
            found["selective"],
            "B",
            section,
        ),
        Claim(f"{what} all of it recomputed", "2sbh/t", all_of_it, found["full"], "B", section),
    ]


def whole_model(trial: Trial, parallelize: Parallelize) -> Claim:
    """The claim on the bytes that a GPT keeps, in its layers and outside, the logits in 16 bits, as the head has them.

    One case is the first of L pipeline stages, which has one layer and, in 1F1B, L micro-batches under way.
    """
    ranks, sizes = (trial.world.size, True), (*trial.sizes, trial.all_heads, trial.layers, VOCABULARY)
    outside = activations.extras(*trial.sizes, VOCABULARY, *ranks)
    names = {*activations.layer_terms(*trial.sizes, trial.all_heads, *ranks), *outside}
    section, formula = "Korthikanti et al. 2022, §4.3", "L · sbh/t · (34 + 5as/h) + sbh/t · (5 + 2V'/h)"
    cases = {}
    for stages in (1, trial.layers):
        gpt = trial.gpt("gathered again", parallelize, torch.bfloat16, DROPOUT)
        counter_rng.set_position(seed=0, step=0)
        with KeptByOperation(gpt, trial.sizes[1]) as counted:
            if stages == 1:
                gpt(*trial.tokens())
            for _ in range(stages if stages > 1 else 0):
                gpt.blocks[0](gpt.embedding(trial.tokens()[0]))
        expected = activations.model(*sizes, *ranks, pipeline=stages)
        expected -= outside[LOGITS] / 2 if stages == 1 else 0
        measured = sum(size for name, size in counted.terms.items() if name in names)
        case = "the whole model" if stages == 1 else "the first stage of a pipeline"
        cases[case] = Claim("", formula, expected, measured, "B", section)
    return fold("gathered again: bytes that the whole model keeps, by the paper's terms, logits in 16 bits", cases)


def published() -> Claim:
    """The claim on the part of a layer that grows with the sequence, in sbh bytes, which the paper prints."""
    models = {"GPT-3": (96, 12288, 80), "MT-NLG": (128, 20480, 64)}
    cases = {}
    for name, (heads, hidden, printed) in models.items():
        kept, without = (activations.layer(1, 2048, hidden, heads, recompute=how) for how in ("none", "selective"))
        found = (kept - without) / (2048 * hidden)
        cases[name] = Claim("", "5as/h", found, printed, "1", "Korthikanti et al. 2022, §5", "published")
    return fold("bytes per sbh of the scores of GPT-3 and of MT-NLG, as published", cases)


# All of them are activations, yellow as in `minitrain.lessons.pictures.memory_bar`: strong if tensor parallelism
# leaves them whole, pale if it divides them.
_WHOLE, _DIVIDED = LOOKS["activations"][0], "#FCF9C8"
_PARTS = {
    "norms": (_WHOLE, "xx", ("attention norm: its input", "MLP norm: its input", costs.STATISTICS)),
    "inputs of attention and MLP": (_WHOLE, "//", (QKV, "up projection: its input")),
    "residual dropout masks": (_WHOLE, "++", ("attention dropout: its mask", "MLP dropout: its mask")),
    "Q, K, V": (_DIVIDED, "", ("QKᵀ: query and key", "attention over V: the values")),
    "scores": (
        _DIVIDED,
        "\\\\",
        (
            "softmax: its output",
            "softmax dropout: its mask",
            "attention over V: the dropout's output",
            costs.MASK,
        ),
    ),
    "output, GELU, down": (
        _DIVIDED,
        "oo",
        ("output projection: its input", "GELU: its input", "down projection: its input"),
    ),
}


def picture(kept: Kept) -> Figure:
    """The bytes that a layer keeps in each way: first those that tensor parallelism leaves whole, then the rest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for place, terms in enumerate(kept.values()):
        left = 0.0
        for name, (colour, hatch, members) in _PARTS.items():
            width = sum(terms.get(member, 0) for member in members) / 1e3
            label = name if place == 0 else None
            axes.barh(place, width, left=left, color=colour, hatch=hatch, edgecolor="#666666", lw=0.5, label=label)
            left += width
        axes.text(left, place, f" {left:.1f}", va="center")
    axes.set(yticks=range(len(kept)), yticklabels=list(kept), xlabel="kB that a layer keeps for backward, on each rank")
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure
