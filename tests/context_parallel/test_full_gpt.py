"""A GPT over context- and tensor-parallel ranks trains as one device does; tests/composition adds other layouts."""

from __future__ import annotations

import pytest
import torch

from minitrain.comm import Ledger
from minitrain.comm.comm import Comm
from minitrain.comm.mesh import axes
from minitrain.comm.messages import all_reduce
from minitrain.context_parallel.full.batches import take
from minitrain.context_parallel.full.parallelize import parallelize
from minitrain.models import counter_rng
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT, IGNORE
from minitrain.sequence_parallel import megatron
from minitrain.tensor_parallel.dropout_rng import place_dropout
from minitrain.tensor_parallel.full import parallelize as tensor
from minitrain.tensor_parallel.full.parameter_layout import sum_partial_gradients

BATCH, STEPS = 2, 2


def gpt(seq, heads=4, kv_heads=None, dropout=0.0, positions_kind="learned"):
    attention = "plain" if dropout else "sdpa"
    config = GPTConfig(17, seq, 2, 4 * heads, heads, kv_heads, dropout, True, attention, positions_kind)
    return GPT(config, seed=0).double()


def batch(step, seq):
    """Tokens, and targets already shifted. Some are ignored: in one step all of the first half."""
    text = torch.randint(17, (BATCH, seq + 1), generator=torch.Generator().manual_seed(step))
    tokens, targets = text[:, :-1], text[:, 1:].clone()
    targets[0, :2] = IGNORE
    if step == 1:
        targets[:, : seq // 2] = IGNORE
    return tokens, targets


class Share(torch.nn.Module):
    """This rank's part of the mean loss over the targets of all ranks."""

    def __init__(self, loss, comm):
        super().__init__()
        self.loss, self.group = loss, comm.group

    def forward(self, logits, targets):
        count = (targets != IGNORE).sum()
        mean = self.loss(logits, torch.where(count > 0, targets, 0))  # a number, even where nothing is to learn
        return mean * (count / all_reduce(count.double(), self.group).wait())


def learn(module, step, tokens, targets, share=lambda module: None):
    """A step of SGD; the loss, and the gradients of all parameters."""
    counter_rng.set_position(3, step)
    loss = module(tokens, targets)[1]
    loss.backward()
    loss = loss.detach()
    share(module)
    if isinstance(module.loss, Share):
        all_reduce(loss, module.loss.group).wait()
    gradients = [parameter.grad.clone() for parameter in module.parameters()]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.3 * parameter.grad
    module.zero_grad()
    return [loss, *gradients]


def sum_over(comm, module):
    for parameter in module.parameters():
        all_reduce(parameter.grad, comm.group).wait()


def refused(world):
    """On all ranks, before anything is sent."""
    module, (tokens, targets) = gpt(8), batch(0, 8)

    def divide():
        parallelize(module, None, "ring", 8)

    with Ledger() as ledger:
        with pytest.raises(ValueError, match=r"heads=4 cannot be divided over 3 ranks, .*use one of \[1, 2, 4\] ranks"):
            parallelize(module, None, "ulysses", 8)
        with pytest.raises(ValueError, match="seq=9 does not fit positions=8"):
            parallelize(module, None, "ring", 9)
        with pytest.raises(ValueError, match="tokens differ in shape between ranks"):
            take(tokens[:, world.rank :], targets[:, world.rank :], "ring")
        divide()
        with pytest.raises(ValueError, match="gpt is context-parallel already"):
            divide()
        with pytest.raises(ValueError, match="tokens of length 8: this rank holds"):
            module(tokens, targets)
    assert not ledger.entries


def test_bad_input_is_refused(ranks):
    ranks(3).run(refused)


def with_tensor_parallel(world, mode, divide):
    """Two ranks share each sequence, and two each head's matrices; with dropout in all places."""
    mesh, seq, kv_heads = axes(cp=2, tp=2), 8, 2
    tp, cp = (Comm(mesh[name].get_group()) for name in ("tp", "cp"))
    reference, module = gpt(seq, 4, kv_heads, 0.2), gpt(seq, 4, kv_heads, 0.2)
    place_dropout(reference)
    divide(module, tp)
    parallelize(module, cp, mode, seq)
    module.loss = Share(module.loss, cp)

    def share(module):
        sum_partial_gradients(module, tp)
        sum_over(cp, module)

    for step in range(STEPS):
        whole = batch(step, seq)
        loss, *gradients = learn(module, step, *take(*whole, mode, cp), share)
        expected, *others = learn(reference, step, *whole)
        torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-12)
        for parameter, found, right in zip(module.parameters(), gradients, others, strict=True):
            torch.testing.assert_close(found, tensor.piece_of(right, parameter, tp), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("mode", "divide"), [("zigzag", megatron.parallelize), ("ulysses", tensor.parallelize)], ids=("sequence", "tensor")
)
def test_with_tensor_and_sequence_parallelism(ranks, mode, divide):
    ranks(4).run(with_tensor_parallel, mode, divide)
