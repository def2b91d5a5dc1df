"""A whole GPT on sequence shards; the lesson and tests/composition train it against one device."""

from __future__ import annotations

import torch

from minitrain.comm import Ledger
from minitrain.sequence_parallel.megatron import parallelize
from minitrain.tensor_parallel.full.parameter_layout import is_partial
from tests.tensor_parallel.test_parallelize import gpt, tokens


def what_is_summed(world):
    model = gpt(world.size)
    with Ledger() as ledger:
        replaced = parallelize(model)
    names = [name for name, parameter in model.named_parameters() if is_partial(parameter)]
    said = [row.name for row in replaced.parameters if "to be summed" in row.how]
    return len(ledger.entries), names, said


def test_norms_row_biases_and_positions_are_to_be_summed(ranks):
    one = ("attention_norm.weight", "attention_norm.bias", "attention.output.bias")
    one += ("mlp_norm.weight", "mlp_norm.bias", "mlp.down.bias")
    expected = ["embedding.positions.weight", *(f"blocks.{n}.{name}" for n in (0, 1) for name in one)]
    expected += ["norm.weight", "norm.bias"]
    for sent, names, said in ranks(2).run(what_is_summed):
        assert sent == 0
        assert sorted(names) == sorted(said) == sorted(expected)


def generated(world):
    model, reference = gpt(world.size), gpt(world.size)
    parallelize(model)
    start = tokens()[0][:, :1]  # of a length that does not divide by the ranks
    both = [each.generate(start, 4, generator=torch.Generator().manual_seed(5)).tolist() for each in (model, reference)]
    # Of a fresh model all tokens are about as likely, so that what is drawn tells little: the logits tell more.
    (logits, _), (right, _) = (each(start) for each in (model, reference))
    return both[0] == both[1] and logits.shape == right.shape and torch.allclose(logits, right, rtol=0, atol=1e-12)


def test_it_generates_what_one_device_does(ranks):
    assert ranks(3).run(generated) == [True] * 3
