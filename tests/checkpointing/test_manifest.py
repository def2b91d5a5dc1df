"""The manifest comes back as it was written, or says that it is damaged; and each file is looked at by one rank."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.checkpointing.full import manifest
from minitrain.checkpointing.full.manifest import Manifest, Sum


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@given(st.data())
def test_any_changed_byte_is_found(folder, data):
    manifest.write(folder, Manifest(7, {"a": Sum(3, "03")}, {"loss": 0.25, "where": "größer"}))
    text = bytearray((folder / manifest.NAME).read_bytes())
    index, bit = data.draw(st.integers(0, len(text) - 1)), data.draw(st.integers(0, 7))
    before = bytes(text)
    text[index] ^= 1 << bit
    (folder / manifest.NAME).write_bytes(text)
    try:
        alike = json.loads(before) == json.loads(text)  # another kind of white space
    except ValueError:
        alike = False
    if alike:
        assert manifest.read(folder).step == 7
        return
    with pytest.raises(ValueError, match=r"manifest.json is damaged"):
        manifest.read(folder)


@pytest.mark.parametrize("text", ("", "[]", '{"files": {"a": 1}, "sha256": ""}'))
def test_other_json_is_damage_too(folder, text):
    (folder / manifest.NAME).write_text(text)
    with pytest.raises(ValueError, match="manifest.json is damaged"):
        manifest.read(folder)


def test_the_files_are_shared_out(tmp_path):
    for name in "abcde":
        (tmp_path / name).write_text(name)
    files = {name: manifest.checksum(tmp_path / name) for name in "abcde"}
    assert files["a"] == Sum(1, "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb")  # FIPS 180-4
    content = Manifest(1, files, {})
    assert manifest.damage(tmp_path, content) == []
    (tmp_path / "a").write_text("b")
    (tmp_path / "b").write_text("bb")
    (tmp_path / "c").unlink()
    (tmp_path / "d").unlink()
    (tmp_path / "d").mkdir()
    found = [manifest.damage(tmp_path, content, rank, 3) for rank in range(3)]
    assert found == [
        [f"{tmp_path}/a is damaged: its checksum is another", found[0][1]],
        [f"{tmp_path}/b has 2 bytes instead of 1"],
        [f"{tmp_path}/c is missing"],
    ]
    assert found[0][1].startswith(f"{tmp_path}/d ")
