"""Experts cut over tensor-parallel ranks: outputs, losses and gradients of the whole layer, whatever computes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.comm.comm import Comm
from minitrain.mixture_of_experts import BiasBalanced, ExpertChoice, MoELayer, Switch, TopK
from minitrain.mixture_of_experts.full.tensor_parallel import cut
from minitrain.models import counter_rng
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import MLP
from minitrain.tensor_parallel.full.parallelize import piece_of

ROUTERS = {"switch": Switch, "choice": ExpertChoice}
# With gated experts without biases, and one that all tokens share.
TODAY = {"top k": TopK, "bias": BiasBalanced}


def layer(router: str, compute: str) -> MoELayer:
    torch.manual_seed(0)
    config = GPTConfig(hidden=12, heads=1)
    if today := router in TODAY:
        config = replace(config, mlp="swiglu", biases="none", mlp_hidden=9)
    experts, shared = [MLP(config) for _ in range(5)], MLP(config) if today else None
    made = MoELayer((ROUTERS | TODAY)[router](12, 5), experts, compute, shared=shared).double()
    for parameter in made.parameters():  # biases, too, which begin with zeros
        nn.init.normal_(parameter, std=0.3)
    return made


def step(mixture: MoELayer, sequence: Comm | None = None):
    torch.manual_seed(3)
    x = torch.randn(3, 6, 12, dtype=torch.float64)
    if sequence is not None:
        x = x.chunk(sequence.ranks, dim=1)[sequence.rank].clone()
    x.requires_grad_()
    counter_rng.set_position(seed=1, step=2)
    y = mixture(x)
    loss = mixture.auxiliary_loss  # the same on all ranks, each of which goes backward through it
    (y.square().sum() + loss).backward()
    return y, x.grad


def compare(world, router: str, compute: str, sequence: bool) -> None:
    """With `sequence`, each rank has some of the tokens of each sequence, which compete with all of their sequence."""
    whole, mine, comm = layer(router, compute), layer(router, compute), Comm()
    cut(mine, comm, sequence=sequence)
    (y, dx), (right, right_dx) = step(mine, comm if sequence else None), step(whole)
    place = slice(comm.rank * 6 // comm.ranks, (comm.rank + 1) * 6 // comm.ranks) if sequence else slice(None)
    torch.testing.assert_close(y, right[:, place], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(dx, right_dx[:, place], rtol=1e-11, atol=1e-12)
    assert torch.equal(mine.routing.load(), whole.routing.load())
    for (name, parameter), (expected, its) in zip(mine.named_parameters(), whole.named_parameters(), strict=True):
        assert name == expected
        assert torch.equal(parameter, piece_of(its, parameter, comm)), name
        torch.testing.assert_close(parameter.grad, piece_of(its.grad, parameter, comm), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("router, compute", [*((each, "grouped") for each in ROUTERS | TODAY), ("switch", "loop")])
@pytest.mark.parametrize("sequence", (False, True))
def test_with_every_router(ranks, router, compute, sequence):
    ranks(3).run(compare, router, compute, sequence)


def sent(world, router) -> None:
    mine = layer(router, "loop")
    cut(mine, Comm())
    with Ledger() as ledger:
        step(mine)
    assert mine.routing is not None
    tokens, rows = 3 * 6, len(mine.routing.token)
    # Forward the tokens; backward their gradients and those of the gates.
    assert ledger.calls("all_reduce") == 3
    assert ledger.payload("all_reduce") == 8 * (2 * tokens * 12 + rows)


@pytest.mark.parametrize("router", ("choice", "top k"))
def test_three_sums_however_many_experts(ranks, router):
    ranks(3).run(sent, router)


def refused(world) -> None:
    other = MoELayer(Switch(4, 2), [nn.Linear(4, 4), MLP(GPTConfig(hidden=4, heads=1))])
    with pytest.raises(ValueError, match="experts of class Linear cannot be cut by tensor parallelism; use gpt.MLP"):
        cut(other, Comm())
    narrow = MoELayer(Switch(1, 1), [MLP(GPTConfig(hidden=1, heads=1))])
    with pytest.raises(ValueError, match="expert_hidden=4 "):
        cut(narrow, Comm())
    assert narrow.tensor is None and type(next(iter(narrow.experts.values()))) is MLP


def test_what_cannot_be_cut(ranks):
    ranks(3).run(refused)
