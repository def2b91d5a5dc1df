"""That the ranks of tests check shapes: nothing else would say so if they did not."""

import pytest
import torch
from jaxtyping import TypeCheckError

from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT


def wrong_shape(world):
    tokens = torch.zeros(2, 3, 4, dtype=torch.long)
    with pytest.raises(TypeCheckError, match="tokens"):
        GPT(GPTConfig(layers=1, hidden=8, heads=1))(tokens)


def test_ranks_check_shapes(ranks):
    ranks(2).run(wrong_shape)
