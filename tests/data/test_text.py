"""The text, its split, the order of its samples, and its bigram entropy."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minitrain.data.text import Samples, Text, bigram_entropy, windows


def tensor(text: bytes) -> Tensor:
    return torch.tensor(list(text), dtype=torch.uint8)


def numbered(length: int) -> Tensor:
    """A text in which a byte tells its place, up to multiples of 251."""
    return (torch.arange(length) % 251).to(torch.uint8)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def test_a_file_is_cut_at_nine_tenths(tmp_path: Path):
    content = bytes(range(1, 251)) * 4
    path = tmp_path / "text"
    path.write_bytes(content)
    text = Text.load(path)
    assert bytes(text.training.tolist()) == content[:900]
    assert bytes(text.validation.tolist()) == content[900:]
    assert text.sha256 == hashlib.sha256(content).hexdigest()
    assert text.name == str(path)


def test_a_folder_is_split_by_file(tmp_path: Path):
    names = [f"{'a' if number % 2 else 'b/c'}/{number}.txt" for number in range(200)]
    text = Text.load(write(tmp_path, {name: f"<{name}>".encode() for name in names}))
    training, validation = (bytes(part.tolist()).decode() for part in (text.training, text.validation))
    held_out = [name for name in names if f"<{name}>" in validation]
    assert training == "".join(f"<{name}>" for name in sorted(names) if name not in held_out)
    assert validation == "".join(f"<{name}>" for name in sorted(held_out))
    # 200 files, each held out with probability 0.1: 20 ± 4.2; five deviations never happen.
    assert 0 < len(held_out) < 42

    # A file stays in its part when others come, whatever they hold.
    more = Text.load(write(tmp_path, {f"more/{number}": b"more" for number in range(50)}))
    assert [name for name in names if f"<{name}>" in bytes(more.validation.tolist()).decode()] == held_out


def test_a_folder_leaves_out_what_is_hidden(tmp_path: Path):
    hidden = dict.fromkeys([".git/config", "a/.b/c", "__pycache__/a.pyc", ".x"], b"hidden")
    text = Text.load(write(tmp_path, {**hidden, "empty": b"", "text": b"y" * 20}))
    assert text.sha256 == hashlib.sha256(b"y" * 20).hexdigest()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "has no text: 1 empty and 0 binary files"),
        (b"a\0b" * 99, "has no text: 0 empty and 1 binary files"),
        (b"abc", "has 3 bytes for training, 0 for validation"),
    ],
)
def test_a_file_without_text(tmp_path: Path, content: bytes, error: str):
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(ValueError, match=f"data=.* {error}"):
        Text.load(tmp_path / "text")


@given(length=st.integers(2, 400), seq=st.integers(1, 40), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_an_epoch_takes_each_window_once(length: int, seq: int, seed: int, epoch: int):
    if length < seq + 1:
        return
    samples = Samples(numbered(length), seq, seed)
    numbers = range(epoch * samples.per_epoch, (epoch + 1) * samples.per_epoch)
    starts = sorted(samples.start(number) for number in numbers)
    assert starts == list(range(starts[0], starts[0] + seq * samples.per_epoch, seq))
    assert 0 <= starts[0]
    assert starts[-1] + seq < length
    # What an epoch leaves out at both ends together is less than two windows.
    assert length - 1 - seq * samples.per_epoch < 2 * seq


def test_a_sample_is_a_function_of_seed_and_number():
    text = numbered(2000)
    forward = Samples(text, 16, seed=1)
    numbers = range(3 * forward.per_epoch)
    expected = [forward.start(number) for number in numbers]
    backward = Samples(text, 16, seed=1)
    assert [backward.start(number) for number in reversed(numbers)] == expected[::-1]
    assert [Samples(text, 16, seed=2).start(number) for number in numbers] != expected
    one = forward.per_epoch
    assert expected[:one] != expected[one : 2 * one] != expected[2 * one :]


def test_each_epoch_begins_at_one_of_the_places_that_its_windows_leave():
    samples = Samples(numbered(100), 16)  # five windows, and 19 of 99 bytes left over
    begins = {min(samples.start(5 * epoch + place) for place in range(5)) for epoch in range(200)}
    assert begins == set(range(20))


def test_targets_have_memory_of_their_own():
    """Whoever masks a target with IGNORE must not change an input, also where there is one sample only."""
    for count in (1, 2):
        inputs, targets = Samples(torch.arange(50, dtype=torch.uint8), seq=4).take(range(count))
        before = inputs.clone()
        targets.fill_(-100)
        assert torch.equal(inputs, before)


@given(
    ranks=st.integers(1, 8),
    each=st.integers(1, 5),
    micro=st.integers(1, 4),
    step=st.integers(0, 30),
    seed=st.integers(),
)
def test_any_layout_takes_the_same_samples(ranks: int, each: int, micro: int, step: int, seed: int):
    global_batch = ranks * each * micro
    samples = Samples(numbered(700), 8, seed)
    inputs, targets = samples.batch(step, global_batch)  # one rank takes them all
    parts = [samples.batch(step, global_batch, rank, ranks) for rank in range(ranks)]
    assert torch.equal(torch.cat([part[0] for part in parts]), inputs)
    assert torch.equal(torch.cat([part[1] for part in parts]), targets)
    micro_batches = [piece for part in parts for piece in part[0].chunk(micro)]
    assert torch.equal(torch.cat(micro_batches), inputs)


def test_a_text_too_short_for_a_window():
    assert Samples(numbered(9), 8).take([0, 1])[0].shape == (2, 8)
    for shorter in (lambda: Samples(numbered(8), 8), lambda: windows(numbered(8), 8)):
        with pytest.raises(ValueError, match="seq=8 needs a text of at least 9 bytes, this one has 8"):
            shorter()
    with pytest.raises(ValueError, match="samples=-1 must not be negative"):
        Samples(numbered(9), 8).take([0, -1])


@given(length=st.integers(2, 251), seq=st.integers(1, 40), count=st.none() | st.integers(1, 50))
def test_evaluation_windows_do_not_overlap(length: int, seq: int, count: int | None):
    if length < seq + 1:
        return
    inputs, targets = windows(numbered(length), seq, count)
    available = (length - 1) // seq
    assert inputs.shape == targets.shape == (min(count or available, available), seq)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    places = targets.flatten().tolist()
    assert places == sorted(set(places))
    with pytest.raises(ValueError, match="count=0 must be at least 1"):
        windows(numbered(length), seq, 0)


@given(st.binary(min_size=2, max_size=300))
def test_bigram_entropy_is_joint_less_marginal(text: bytes):
    """H(next | previous) = H(previous, next) − H(previous), counted by another means."""

    def entropy(counts: Counter) -> float:
        total = sum(counts.values())
        return -sum(count / total * math.log(count / total) for count in counts.values())

    expected = entropy(Counter(zip(text, text[1:], strict=False))) - entropy(Counter(text[:-1]))
    assert bigram_entropy(tensor(text)) == pytest.approx(expected, abs=1e-12)


def test_reference_repeats_no_paragraph_of_training_in_validation():
    text = Text.load()
    training, validation = (bytes(part.tolist()).split(b"\n\n") for part in (text.training, text.validation))
    # The first and last paragraph of a part may be cut.
    assert not set(training[:-1]) & set(validation[1:])
