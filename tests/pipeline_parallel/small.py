"""What both small forms are tested with: one device, the full form, and neighbors that take nothing unasked."""

from __future__ import annotations

from unittest import mock

import torch

from minitrain.comm import messages
from minitrain.comm.mesh import axes
from minitrain.pipeline_parallel import gpipe, one_f_one_b, splitting
from tests.pipeline_parallel.models import SEQ, accumulate, gpt, tokens

FORMS = {"gpipe": gpipe, "one_f_one_b": one_f_one_b}


def template() -> torch.Tensor:
    """What passes between the stages of `gpt`."""
    return torch.empty(2, SEQ, 6, dtype=torch.float64)


def counts(ranks):
    """Numbers of micro-batches: one, fewer than ranks, as many, more, and many more."""
    return sorted({1, max(1, ranks - 1), ranks, ranks + 1, 2 * ranks + 3})


def like_one_device(form, group=None):
    """The gradients have one device's bits."""
    rank, ranks = messages.rank_and_size(group)
    for microbatches in counts(ranks):
        model, reference = gpt(ranks), gpt(ranks)
        stage = splitting.split(model, splitting.evenly(model, ranks))[rank]
        FORMS[form].step(stage, *tokens(microbatches), model.loss, template(), group)
        accumulate(reference, *tokens(microbatches))
        theirs = dict(reference.named_parameters())
        assert all(torch.equal(parameter.grad, theirs[name].grad) for name, parameter in stage.named_in_model())


def in_a_group(world, form):
    like_one_device(form, axes(dp=2, pp=2)["pp"].get_group())


# ---- the rules of NCCL, made stricter: a call goes on only when the neighbor has made the one that belongs to it ----

CALLS = ("send", "receive", "exchange")
PARTNER = {"send": "receive", "receive": "send", "exchange": "exchange"}


def meet(call: str, neighbor: int) -> None:
    """Block until the neighbor makes its next call on this link, which must be the partner of this one."""
    mine, theirs = torch.tensor([CALLS.index(call)]), torch.empty(1, dtype=torch.long)
    messages.exchange(mine, neighbor, theirs, neighbor).wait()
    met = CALLS[int(theirs)]
    assert met == PARTNER[call], f"a lone {call} meets a {met}: NCCL would wait for ever"


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


def by_strict_rules(world, form, exchange=strict_exchange):
    """No message leaves before its receiver waits for it, and gradients are the same."""
    strict = {"send": strict_send, "receive": strict_receive, "exchange": exchange}
    known = {name: verb for name, verb in strict.items() if hasattr(FORMS[form], name)}
    with mock.patch.multiple(FORMS[form], **known):
        like_one_device(form)
