"""What a constant buffer refuses; the lesson has the rest."""

from __future__ import annotations

import pytest
import torch

from minitrain.comm import Ledger
from minitrain.zero import constant_buffers as technique


def wrong(world):
    with Ledger() as ledger:
        with pytest.raises(AssertionError, match="flat view"):
            technique.all_reduce_through(torch.empty(3), [torch.ones(2, 3).t()])
        for buffer in (torch.empty(0), torch.empty(2, 2)):
            with pytest.raises(AssertionError, match="one flat tensor"):
                technique.all_reduce_through(buffer, [torch.ones(2)])
        technique.all_reduce_through(torch.empty(3), [])
    assert not ledger.entries


def test_what_cannot_be_sent_is_refused_before_anything_is(ranks):
    ranks(2).run(wrong)
