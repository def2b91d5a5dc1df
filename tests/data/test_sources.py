"""Several sources as one: each in its share, in an order of the seed, and told apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minitrain.data.mixture import Mixture
from minitrain.data.sources import Mixed, load
from minitrain.data.text import Text

SEQ = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three texts of other lengths, each of other bytes."""
    folder = tmp_path_factory.mktemp("sources")
    for first, length in ((97, 3000), (107, 5000), (117, 9000)):
        draw = torch.Generator().manual_seed(first)
        (folder / chr(first)).write_bytes(bytes(torch.randint(first, first + 10, (length,), generator=draw).tolist()))
    return [str(folder / name) for name in ("a", "k", "u")]


def mixed(files: list[str], *weights: float) -> Mixed:
    source = load(mix=[f"{Path(file).name}={weight}:{file}" for file, weight in zip(files, weights, strict=True)])
    assert isinstance(source, Mixed)
    return source


def test_each_source_is_read_in_the_seed_s_order(files, seed=5):
    found = mixed(files, 0.5, 0.3, 0.2).samples(SEQ, seed)
    alone = Mixture([Text.load(file).samples(SEQ, seed) for file in files], [0.5, 0.3, 0.2], seed)
    assert all(map(torch.equal, found.take(range(40)), alone.take(range(40))))


def test_what_is_held_out_is_of_each_in_its_share(files):
    source, each = mixed(files, 0.5, 0.3, 0.2), [Text.load(file) for file in files]
    assert source.windows(SEQ) == sum(text.windows(SEQ) for text in each)
    inputs, targets = source.held_out(SEQ, 30)
    expected = [text.held_out(SEQ, count) for text, count in zip(each, (15, 9, 6), strict=True)]
    assert torch.equal(inputs, torch.cat([first for first, _ in expected]))
    assert torch.equal(targets, torch.cat([then for _, then in expected]))
    assert source.source_of_held_out(30).tolist() == [0] * 15 + [1] * 9 + [2] * 6
    assert sum(source.source_of_held_out(7).bincount()) == 7  # however the shares are rounded
    assert source.bigram() == pytest.approx(0.5 * each[0].bigram() + 0.3 * each[1].bigram() + 0.2 * each[2].bigram())


def test_another_share_order_or_text_is_another_checksum(files):
    sums = [mixed(files, 0.5, 0.3, 0.2).sha256, mixed(files, 0.5, 0.2, 0.3).sha256, mixed(files[:2], 0.5, 0.5).sha256]
    assert len({*sums, mixed(files[::-1], 0.2, 0.3, 0.5).sha256}) == 4
    assert mixed(files, 0.5, 0.3, 0.2).sha256 == sums[0]
