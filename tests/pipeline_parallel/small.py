"""Neighbors that take nothing unasked: the rules of NCCL, made stricter."""

from __future__ import annotations

import torch

from minitrain.comm import messages
from tests.pipeline_parallel.models import SEQ


def template() -> torch.Tensor:
    """What passes between the stages of `gpt`."""
    return torch.empty(2, SEQ, 6, dtype=torch.float64)


# ---- the rules of NCCL, made stricter: a call goes on only when the neighbor has made the one that belongs to it ----

CALLS = ("send", "receive", "exchange")
PARTNER = {"send": "receive", "receive": "send", "exchange": "exchange"}


def meet(call: str, neighbor: int) -> None:
    """Block until the neighbor makes its next call on this link, which must be the partner of this one."""
    mine, theirs = torch.tensor([CALLS.index(call)]), torch.empty(1, dtype=torch.long)
    messages.exchange(mine, neighbor, theirs, neighbor).wait()
    met = CALLS[int(theirs)]
    assert met == PARTNER[call], f"a lone {call} meets a {met}: NCCL would wait forever"


def strict_send(tensor, to, group=None):
    meet("send", to)
    return messages.send(tensor, to, group)


def strict_receive(into, source, group=None):
    meet("receive", source)
    return messages.receive(into, source, group)


def strict_exchange(tensor, to, into, source, group=None):
    assert to == source
    meet("exchange", to)
    return messages.exchange(tensor, to, into, source, group)


def lone_exchange(tensor, to, into, source, group=None):
    """Two calls in place of one: right with gloo, which keeps what has been sent; not by strict rules."""
    sent = strict_send(tensor, to, group)
    strict_receive(into, source, group).wait()
    sent.wait()
