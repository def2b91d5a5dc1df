"""Decoding in a pipeline writes one device's text: any number of groups, prompts of different lengths."""

from __future__ import annotations

import pytest

from minitrain.inference.pipeline_decode import decode
from minitrain.lessons.inference.pipeline_decode import Writer


def write(world, groups, count, lengths):
    writer = Writer(world, groups, max(lengths), count)
    prompts = [prompt[:, :length] for prompt, length in zip(writer.prompts, lengths, strict=True)]
    found = decode(writer.stage, prompts, count, writer.template)
    right = [writer.gpt.generate(each, count, temperature=0.0)[:, each.shape[1] :] for each in prompts]
    assert len(found) == (groups if world.rank == world.size - 1 else 0)
    assert all(a.equal(b) for a, b in zip(found, right, strict=False))
    return sum(cache.tokens for cache in writer.caches)


@pytest.mark.parametrize(
    ("size", "lengths", "count"),
    [(1, [3, 5], 4), (2, [4], 5), (2, [1, 6, 2], 3), (3, [5, 5, 5, 2], 4), (3, [4, 3], 1)],
)
def test_one_devices_text(ranks, size, lengths, count):
    seen = ranks(size).run(write, len(lengths), count, lengths)
    # Two layers per rank have seen each prompt, and all that was written but the last token.
    assert seen == [2 * sum(length + count - 1 for length in lengths)] * size
