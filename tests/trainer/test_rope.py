"""Rotary positions in a run, and all of a Qwen: resumed, exported, and continued with longer sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minitrain.composition.settings import Layout
from tests.composition.test_llama import QWEN
from tests.trainer.conftest import apart
from tests.trainer.test_trainer import MODEL, asked, do

ROPE = replace(MODEL, dropout=0.0, positions_kind="rope", rope_base=50.0)
LONGER = replace(ROPE, positions=64, rope_base=300.0)


@pytest.fixture(scope="module")
def short(ranks, tmp_path_factory):
    """A run on short sequences in one go, and its weights in a file."""
    folder = tmp_path_factory.mktemp("short")
    file = folder / "short.safetensors"
    ((status, losses, state, _, _),) = ranks(1).run(do, asked(folder, model=ROPE, export=str(file)))
    assert status == 0
    return folder, file, losses, state


@pytest.mark.parametrize("layout", (Layout(), Layout(pp=2, microbatches=2)), ids=str)
def test_continued_with_longer_sequences_and_a_larger_base(ranks, short, tmp_path, layout):
    found = ranks(layout.ranks).run(do, asked(tmp_path, layout, model=LONGER, load=str(short[1]), steps=0))
    weights = {name: value for name, value in short[3].items() if name.startswith("model.")}
    assert weights and all(torch.equal(value, found[0][2][name]) for name, value in weights.items())
    found = ranks(layout.ranks).run(do, asked(tmp_path, layout, "late", LONGER, load=str(short[1]), steps=1))
    assert all(status == 0 for status, *_ in found)
    # The base is in use: another one gives another loss with the same weights and samples.
    other = replace(LONGER, rope_base=50.0)
    again = ranks(layout.ranks).run(do, asked(tmp_path, layout, "same", other, load=str(short[1]), steps=1))
    assert abs(found[0][1][0] - again[0][1][0]) > 1e-9


def test_a_qwen_is_resumed_where_four_ranks_share_two_key_heads(ranks, tmp_path):
    ((_, losses, state, _, _),) = ranks(1).run(do, asked(tmp_path, model=QWEN, name="whole"))
    ranks(1).run(do, asked(tmp_path, model=QWEN), 2)  # stopped after two steps
    layout = Layout(tp=4, sequence_parallel=True)
    for status, after, resumed, _, done in ranks(4).run(do, asked(tmp_path, layout, model=QWEN, resume=True)):
        assert (status, done) == (0, 4) and after == pytest.approx(losses[2:], abs=1e-12)
        assert state.keys() == resumed.keys() and apart(state, resumed) < 1e-9
