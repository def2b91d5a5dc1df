"""What both small forms are tested with: one device, the full form, and neighbors that take nothing unasked."""

from __future__ import annotations

from unittest import mock

import torch
from torch import nn

from minitrain.comm import messages
from minitrain.comm.mesh import axes
from minitrain.comm.messages import all_reduce
from minitrain.pipeline_parallel import gpipe, one_f_one_b, schedules, splitting
from minitrain.pipeline_parallel.executor import Pipeline
from tests.pipeline_parallel.models import SEQ, accumulate, gpt, stages_of, tokens

FORMS = {"gpipe": (gpipe, schedules.gpipe), "one_f_one_b": (one_f_one_b, schedules.one_f_one_b)}


def template() -> torch.Tensor:
    """What passes between the stages of `gpt`."""
    return torch.empty(2, SEQ, 6, dtype=torch.float64)


def counts(ranks):
    """Numbers of micro-batches: one, fewer than ranks, as many, more, and many more."""
    return sorted({1, max(1, ranks - 1), ranks, ranks + 1, 2 * ranks + 3})


def step(form, stage, microbatches, number, model, group=None):
    inputs, targets = tokens(microbatches, number)
    return FORMS[form][0].step(stage, inputs, targets, model.loss, template(), group)


def like_one_device_and_full_form(world, form, group=None):
    """Loss, gradients, their norm and the updated parameters have the bits of one device and of the `Pipeline`."""
    torch.set_num_threads(1)
    rank, ranks = messages.rank_and_size(group)
    for microbatches in counts(ranks):
        schedule = FORMS[form][1](ranks, microbatches)
        model, other, reference = (gpt(ranks + 1) for _ in range(3))  # the first stage has a block more
        (stage,), _ = stages_of(model, schedule, rank)
        (full,), _ = stages_of(other, schedule, rank)
        pipeline = Pipeline([full], schedule, other.loss, group)
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (stage, full, reference)]
        for number in range(2):
            loss = step(form, stage, microbatches, number, model, group)
            same = pipeline.step(*tokens(microbatches, number))
            expected = accumulate(reference, *tokens(microbatches, number))
            assert (loss is None) == (rank < ranks - 1)
            assert loss is None or torch.equal(loss, expected) and torch.equal(loss, same)
            theirs, its = dict(reference.named_parameters()), dict(full.named_in_model())
            for name, parameter in stage.named_in_model():
                for found in (theirs[name], its[name]):
                    assert torch.equal(parameter.grad, found.grad) and torch.equal(parameter, found), name
            # The norm over all stages, whose sum of squares is added in another order.
            squares = torch.stack([parameter.grad.square().sum() for parameter in stage.parameters()]).sum()
            norm = nn.utils.clip_grad_norm_(reference.parameters(), float("inf"))
            torch.testing.assert_close(all_reduce(squares, group).wait().sqrt(), norm, rtol=1e-12, atol=0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


def in_a_group(world, form):
    like_one_device_and_full_form(world, form, axes(dp=2, pp=2)["pp"].get_group())


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
    """A step in which no message leaves before its receiver is there gives the same gradients."""
    module = FORMS[form][0]
    strict = {"send": strict_send, "receive": strict_receive, "exchange": exchange}
    known = {name: verb for name, verb in strict.items() if hasattr(module, name)}
    for microbatches in counts(world.size):
        model, reference = gpt(world.size), gpt(world.size)
        stage = splitting.split(model, splitting.evenly(model, world.size))[world.rank]
        with mock.patch.multiple(module, **known):
            step(form, stage, microbatches, 0, model)
        accumulate(reference, *tokens(microbatches))
        theirs = dict(reference.named_parameters())
        assert all(torch.equal(parameter.grad, theirs[name].grad) for name, parameter in stage.named_in_model())
