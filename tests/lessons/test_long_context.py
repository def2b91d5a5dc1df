"""The lesson of the late stage of a pretraining, with few steps."""

from __future__ import annotations

import pytest
import torch

from minitrain.data.text import Text
from minitrain.lessons.models import long_context as lesson
from minitrain.models.gpt import GPT


def test_continued_weights_and_loss_by_position():
    gpt, text = GPT(lesson.CONFIG, seed=1), Text.load("reference")
    longer = lesson.continued(gpt, lesson.BASES[0])
    tokens = torch.randint(256, (2, 64), generator=torch.Generator().manual_seed(0))
    # The same sums, in the order of the same kernel.
    torch.testing.assert_close(longer(tokens)[0], gpt(tokens)[0])
    found = lesson.by_position(longer, text, count=2)
    window = text.validation[: lesson.LONG + lesson.BIN + 1].long()
    losses = []
    for start in (0, lesson.BIN):
        logits, _ = longer(window[None, start : start + lesson.LONG])
        chances = logits[0].log_softmax(-1)
        losses.append([-chances[place, window[start + place + 1]].item() for place in range(lesson.LONG)])
    for number, mean in enumerate(found):
        places = range(number * lesson.BIN, (number + 1) * lesson.BIN)
        assert mean == pytest.approx(sum(each[p] for each in losses for p in places) / 64, abs=1e-5)
