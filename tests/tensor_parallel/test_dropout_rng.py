"""Dropout by place: one device's elements on every rank; tests/composition trains and recomputes with it."""

from __future__ import annotations

import pytest
import torch

from minitrain.models import counter_rng
from minitrain.tensor_parallel.dropout_rng import AttentionDropout, ResidualDropout

SITES = ("blocks.0.mlp_dropout", "blocks.1.mlp_dropout")
PLACES = ((0, 0), (0, 6), (1, 0))  # step and first token


def mask(seed, site, place, shape=(1, 3, 16)):
    counter_rng.set_position(seed, *place)
    return ResidualDropout(0.5, site)(torch.ones(shape)) != 0


def test_every_seed_place_and_site_has_a_mask_of_its_own():
    found = [mask(seed, site, place) for seed in (0, 1) for site in SITES for place in PLACES]
    assert len({tuple(each.flatten().tolist()) for each in found}) == 2 * len(SITES) * len(PLACES)


def test_a_micro_batch_has_its_part_of_the_batchs_mask():
    """Four sequences of three tokens at once, or two and two."""
    whole = mask(0, SITES[0], (2, 0), (4, 3, 16))
    parts = [mask(0, SITES[0], (2, first * 3), (2, 3, 16)) for first in (0, 2)]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("p", (0.1, 0.5, 0.8))
def test_it_drops_as_often_as_asked_and_keeps_the_mean(p):
    counter_rng.set_position(3, 1)
    many = 1 << 18
    for dropped in (
        ResidualDropout(p, SITES[0])(torch.ones(8, 64, 512)),
        AttentionDropout(p, "core.dropout")(torch.ones(4, 4, 128, 128)),
    ):
        assert abs(int((dropped == 0).sum()) - p * many) < 6 * (p * (1 - p) * many) ** 0.5  # six standard deviations
        assert dropped[dropped != 0].allclose(torch.tensor(1 / (1 - p)))
        rows = (dropped == 0).flatten(0, -2).double()
        near = 6 / many**0.5 * p * (1 - p)  # of a covariance of neighbors, whose deviation is p(1−p)/√N
        for one, other in ((rows[:, 1:], rows[:, :-1]), (rows[1:], rows[:-1])):
            assert abs(((one - p) * (other - p)).mean()) < 1.1 * near


def test_nothing_is_drawn_in_evaluation_or_without_dropout():
    torch.manual_seed(0)  # no place: drawing would be an error
    x, weights = torch.ones(1, 2, 3), torch.ones(1, 2, 3, 3)
    assert ResidualDropout(0.5, "x").eval()(x) is x and ResidualDropout(0.0, "x")(x) is x
    assert AttentionDropout(0.5, "x").eval()(weights) is weights and AttentionDropout(0.0, "x")(weights) is weights
    with pytest.raises(RuntimeError, match=r"cannot draw before set_position\(seed, step, first_token\)"):
        ResidualDropout(0.5, "x")(x)
