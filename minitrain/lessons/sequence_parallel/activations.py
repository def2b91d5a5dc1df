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
from minitrain.lessons.sequence_parallel.common import OURS, Trial, Way
from minitrain.lessons.sequence_parallel.megatron import kept_terms

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

    Each storage counts once, for the first operation that saves it; parameters do not count. `seq` are the tokens of a
    whole sequence; `terms` has the bytes by term, in the order in which they were saved.
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


def measure(trial: Trial) -> dict[Way, dict[str, int]]:
    """The bytes that one layer keeps, by way and term."""
    kept: dict[Way, dict[str, int]] = {}
    for way in get_args(Way):
        block = trial.gpt(way, torch.bfloat16).blocks[0]
        with KeptByOperation(block, trial.sizes[1]) as counted:
            block(trial.hidden_states(way, torch.bfloat16))
        kept[way] = counted.terms
    return kept


def predicted(trial: Trial, way: Way) -> tuple[dict[str, float], dict[str, float]]:
    """The paper's count for a way, and the bytes that torch keeps beyond it, by term."""
    tensor, heads = (1 if way == "one device" else trial.world.size), trial.heads * trial.world.size
    paper = activations.layer_terms(*trial.sizes, heads, tensor, way in OURS)
    return paper, {name: kept - paper.get(name, 0.0) for name, kept in kept_terms(trial, way).items()}
