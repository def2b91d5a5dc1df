"""That the ranks of tests check shapes: nothing else would say so if they did not."""

import pytest
import torch
from jaxtyping import TypeCheckError

from minitrain.models.rotary import Rotary


def wrong_shape(world):
    query = torch.zeros(2, 3, 4)
    with pytest.raises(TypeCheckError, match="query"):
        Rotary(10.0)(query, query)


def test_ranks_check_shapes(ranks):
    ranks(2).run(wrong_shape)
