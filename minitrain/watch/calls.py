"""torch's own verbs, watched: the one place at which observers look, for our calls and for a reader's.

`minitrain.comm.messages` calls torch like any reader's code, and so neither needs to know that it is watched. What
torch calls by itself passes straight through, and so does the rest of `minitrain.comm`: its control messages are
nobody's business, and its collectives tell the observers themselves what they have compared.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from minitrain.watch.checks import check_message
from minitrain.watch.observers import Communication, Work, observe

LATER = ("isend", "irecv", "batch_isend_irecv")  # these return handles
OWN = ("torch.", "minitrain.comm.", "minitrain.watch.")
MESSAGES = "minitrain.comm.messages"
NOTHING = Tensor()


def observe_calls() -> None:
    """From now on, observe the calls of `torch.distributed`."""
    for name, describe in VERBS.items():
        verb = getattr(dist, name, None)
        if verb is not None and not isinstance(verb, Observed):
            setattr(dist, name, Observed(verb, describe))
    dist.P2POp = Message


class Observed:
    """A verb of torch's whose calls from outside are observed; in everything else it is torch's own."""

    def __init__(self, verb: Callable[..., Any], describe: Callable[[dict[str, Any]], list[Communication]]):
        self.verb, self.describe, self.signature = verb, describe, inspect.signature(verb)
        self.__name__, self.__doc__, self.__wrapped__ = verb.__name__, verb.__doc__, verb

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not Communication.observers or (f"{caller}.".startswith(OWN) and caller != MESSAGES):
            return self.verb(*args, **kwargs)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            return self.verb(*args, **kwargs)  # torch says what is wrong
        bound.apply_defaults()
        watches = [observe(communication) for communication in self.describe(bound.arguments)]
        if self.verb.__name__ in LATER or bound.arguments.get("async_op"):
            works = self.verb(*args, **kwargs)
            if isinstance(works, list):
                if len(works) < len(watches):  # of a batch, NCCL returns one for all
                    watches = [sum(watches, [])]
                return [Work(*pair) for pair in zip(works, watches, strict=True)]
            return None if works is None else Work(works, sum(watches, []))
        everything = sum(watches, [])
        for watch in everything:
            watch.waits()
        result = self.verb(*args, **kwargs)
        for watch in everything:
            watch.ends()
        return result


class Message(dist.P2POp):
    """One of a batch, `dist.P2POp(dist.isend, …)`: torch asks which of its own two verbs it is."""

    def __new__(cls, op: Any, *args: Any, **kwargs: Any) -> Message:
        return super().__new__(cls, inspect.unwrap(op), *args, **kwargs)

    def __init__(self, op: Any, tensor: Tensor, peer: int | None = None, *args: Any, **kwargs: Any) -> None:
        op = inspect.unwrap(op)
        if kwargs.get("group_peer") is not None:  # before torch, which would only say that there is no such rank
            check_message(Communication(_verb(op), tensor, kwargs.get("group"), kwargs["group_peer"]))
        super().__init__(op, tensor, peer, *args, **kwargs)


def _verb(op: Any) -> str:
    return "send" if op is dist.distributed_c10d.isend else "receive"


def _message(verb: str, given: dict[str, Any]) -> list[Communication]:
    group, end = given.get("group"), "dst" if verb == "send" else "src"
    peer = given.get(f"group_{end}")
    if peer is None:
        if given[end] is None:
            return []  # from any rank: there is no telling which one is missing
        peer = given[end] if group is None else dist.get_group_rank(group, given[end])
    return [Communication(verb, given["tensor"], group, peer, given.get("tag", 0))]


def _batch(given: dict[str, Any]) -> list[Communication]:
    return [
        Communication(_verb(each.op), each.tensor, each.group, each.group_peer, each.tag)
        for each in given["p2p_op_list"]
    ]


def _collective(verb: str, brings: str, into: str = "") -> Callable[[dict[str, Any]], list[Communication]]:
    def describe(given: dict[str, Any]) -> list[Communication]:
        tensor, result = given.get(brings), given.get(into, NOTHING)
        if isinstance(tensor, (list, tuple)):
            tensor = tensor[0] if tensor else None
        if not isinstance(tensor, Tensor):
            return []
        tensor = tensor.contiguous()  # torch's collectives take tensors with gaps
        sizes = None
        if verb == "all_to_all":
            ranks = dist.get_world_size(given["group"])
            leaving = given["input_split_sizes"] or [len(tensor) // ranks] * ranks
            sizes = leaving, given["output_split_sizes"] or [len(result) // ranks] * ranks
        return [Communication(verb, tensor, given["group"], into=result if into else None, sizes=sizes)]

    return describe


def _meeting(verb: str) -> Callable[[dict[str, Any]], list[Communication]]:
    """A collective of which we only check that all ranks arrive."""
    return lambda given: [Communication(verb, NOTHING, given["group"])]


VERBS: dict[str, Callable[[dict[str, Any]], list[Communication]]] = {
    "send": lambda given: _message("send", given),
    "isend": lambda given: _message("send", given),
    "recv": lambda given: _message("receive", given),
    "irecv": lambda given: _message("receive", given),
    "batch_isend_irecv": _batch,
    "all_reduce": _collective("all_reduce", "tensor"),
    "broadcast": _collective("broadcast", "tensor"),
    "reduce": _collective("reduce", "tensor"),
    "all_gather": _collective("all_gather", "tensor"),
    "all_gather_single": _collective("all_gather", "input_tensor", "output_tensor"),
    "reduce_scatter_single": _collective("reduce_scatter", "input", "output"),
    "all_gather_into_tensor": _collective("all_gather", "input_tensor", "output_tensor"),
    "reduce_scatter": _collective("reduce_scatter", "input_list", "output"),
    "reduce_scatter_tensor": _collective("reduce_scatter", "input", "output"),
    "all_to_all_single": _collective("all_to_all", "input", "output"),
    "gather": _collective("gather", "tensor"),
    "scatter": _collective("scatter", "tensor"),
    "barrier": _meeting("barrier"),
    "all_to_all": _meeting("all_to_all"),
    "all_gather_object": _meeting("all_gather_object"),
    "broadcast_object_list": _meeting("broadcast_object_list"),
}
