"""Random numbers: equal where they must be, different where they must be, and the same when computed again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from minitrain.models import GPT, GPTConfig
from minitrain.models.gpt import Block
from minitrain.runtime import Ledger
from minitrain.tensor_parallel.parallelize import parallelize
from minitrain.tensor_parallel.streams import InStream, Streams

NAMES = ("blocks.0.mlp_dropout", "blocks.1.mlp_dropout")
PLACES = ((0, 0), (0, 1), (1, 0))


def masks(world, seed, stream, name, place, before=0):
    """This rank's mask of one place, after it drew `before` numbers for itself."""
    streams = Streams(seed)
    streams.at(*place)
    torch.rand(before * world.rank)
    return InStream(nn.Dropout(0.5), streams, stream, name)(torch.ones(64)).tolist()


def test_replicated_is_equal_on_all_ranks_and_sharded_differs(ranks):
    replicated = ranks(3).run(masks, 0, "replicated", NAMES[0], (0, 0))
    assert replicated[0] == replicated[1] == replicated[2]
    sharded = ranks(3).run(masks, 0, "sharded", NAMES[0], (0, 0))
    assert len({tuple(mask) for mask in [*sharded, replicated[0]]}) == 4


def test_replicated_is_that_of_any_number_of_ranks(ranks):
    assert (
        ranks(2).run(masks, 0, "replicated", NAMES[0], (0, 0))[0]
        == ranks(1).run(masks, 0, "replicated", NAMES[0], (0, 0))[0]
    )


def test_every_seed_place_and_name_has_a_mask_of_its_own(ranks):
    found = [
        tuple(ranks(1).run(masks, seed, "replicated", name, place)[0])
        for seed in (0, 1)
        for name in NAMES
        for place in PLACES
    ]
    assert len(set(found)) == 2 * len(NAMES) * len(PLACES)


@pytest.mark.parametrize("stream", ("replicated", "sharded"))
def test_what_a_rank_draws_for_itself_changes_no_mask(ranks, stream):
    arguments = (0, stream, NAMES[0], (2, 1))
    assert ranks(2).run(masks, *arguments, 5) == ranks(2).run(masks, *arguments)


def left_alone(world):
    """The default generator goes on as if no stream had drawn."""
    streams = Streams(0)
    streams.at(0)
    expected = torch.rand(3)
    streams.at(0)
    dropout = InStream(nn.Dropout(0.5), streams, "sharded", NAMES[0])
    dropout(torch.ones(5))
    with Ledger() as ledger:
        assert torch.equal(torch.rand(3), expected)
        dropout.eval()
        assert torch.equal(dropout(torch.ones(5)), torch.ones(5))
    return ledger.entries


def test_the_default_generator_is_left_as_it_was(ranks):
    assert ranks(2).run(left_alone) == [[], []]


def model(world, p=0.5, attention="plain", **streams):
    config = GPTConfig(13, 5, 2, hidden=8 * world.size, heads=2 * world.size, dropout=p, attention=attention)
    gpt = GPT(config, seed=0).double()
    parallelize(gpt, **streams)
    return gpt


def batch(number):
    return torch.randint(13, (2, 2, 5), generator=torch.Generator().manual_seed(number)).unbind()


def keep_again(block):
    """Computes a block again in backward."""
    forward = block.forward
    block.forward = lambda x: checkpoint(forward, x, use_reentrant=False)


def recomputed(world, again, attention):
    """Two micro-batches forward, then both backward, the last one first: as on a pipeline's stage."""
    streams = Streams(4)
    gpt = model(world, attention=attention, streams=streams)
    if again:
        for part in gpt.modules():
            if isinstance(part, Block):
                keep_again(part)
    losses = []
    for micro_batch in range(2):
        streams.at(0, micro_batch)
        losses.append(gpt(*batch(micro_batch))[1])
    for loss in reversed(losses):
        loss.backward()
    return [parameter.grad for parameter in gpt.parameters()]


@pytest.mark.parametrize("attention", ("plain", "sdpa"))
def test_recomputation_draws_the_same_masks_though_the_next_micro_batch_has_begun(ranks, attention):
    kept, again = (ranks(2).run(recomputed, again, attention) for again in (False, True))
    for mine, other in zip(kept, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def in_a_gpt(world):
    """The first heads' weights that survive, and the residual stream, of each rank."""
    streams = Streams(1)
    gpt = model(world, streams=streams)
    core = gpt.blocks[0].attention.core
    kept = {}
    core.module.dropout.register_forward_hook(lambda _, x, out: kept.update(mask=(out != 0) == (x[0] != 0)))
    gpt.norm.register_forward_hook(lambda _, x, out: kept.update(stream=x[0].detach()))
    streams.at(0)
    gpt(*batch(0))
    return kept["mask"], kept["stream"]


def test_in_a_gpt_heads_lose_different_weights_and_residual_streams_stay_equal(ranks):
    (first, stream), (second, other) = ranks(2).run(in_a_gpt)
    assert torch.equal(stream, other)
    assert not torch.equal(first, second)


# What goes wrong without streams.
def seeded_alike(world):
    torch.manual_seed(0)
    weights = torch.ones(1, 2, 8, 8)  # this rank's two heads
    return F.dropout(weights, 0.5)


def test_break_it_seeded_alike_the_heads_of_all_ranks_lose_the_same_weights(ranks):
    masks = ranks(3).run(seeded_alike)
    assert all(torch.equal(mask, masks[0]) for mask in masks)


def seeded_apart(world, check):
    """What a rank's own seed does: the copies of the residual stream drift apart."""
    gpt = model(world, 0.0, check=check)
    for block in gpt.blocks:
        block.mlp_dropout = nn.Dropout(0.5)
    torch.manual_seed(world.rank)
    if check:
        with Ledger() as ledger, pytest.raises(ValueError, match="`x` must be equal .* dropout masks"):
            gpt(*batch(0))
        return ledger.calls("all_reduce")
    stream = {}
    gpt.norm.register_forward_hook(lambda _, x, out: stream.update(x=x[0].detach()))
    gpt(*batch(0))
    return stream["x"]


def test_break_it_seeded_apart_the_residual_streams_drift_and_no_error_says_so(ranks):
    first, second = ranks(2).run(seeded_apart, False)
    assert (first != second).float().mean() > 0.3  # half of the elements of each block's sum are other ones


def test_checking_notices_residual_streams_that_drifted(ranks):
    # The embedding and both sums of the first layer have been sent; then the second layer's input differs.
    assert ranks(2).run(seeded_apart, True) == [3, 3]


def bad(world):
    streams = Streams(0)
    with pytest.raises(RuntimeError, match=r"x cannot draw before streams.at\(step, micro_batch\)"):
        InStream(nn.Dropout(0.5), streams, "replicated", "x")(torch.ones(1))
    with pytest.raises(Exception, match="stream"):
        InStream(nn.Dropout(0.5), streams, "both", "x")


def test_bad_input(ranks):
    ranks(2).run(bad)
