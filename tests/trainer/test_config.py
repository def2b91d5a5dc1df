"""Settings from a file: what a run writes is what the next one reads, options win, and mistakes are named."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.composition.settings import Layout, Model, Run, Settings, Steps
from minitrain.trainer import command, config
from tests.trainer.test_trainer import asked, do

PRINTED = st.text(st.characters(exclude_categories=["Cs"]))  # all that UTF-8 can write
NUMBERS = st.floats(allow_nan=False)


@given(data=PRINTED, load=st.none() | PRINTED, lr=NUMBERS, layers=st.none() | st.integers(), mix=st.lists(PRINTED))
def test_a_file_gives_back_what_was_written(data, load, lr, layers, mix, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / config.NAME
    steps = Steps(data=data, lr=lr, mix=tuple(mix))
    settings = Settings(Model(layers=layers, tied=False), Layout(zero=3), steps, Run(load=load))
    config.write(file.parent, settings)
    assert config.read(file, Settings()) == settings


def test_help_shows_what_is_set_often_and_the_rest_on_demand(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")

    def shown(*words):
        with pytest.raises(SystemExit, match="^0$"):
            command.read([*words])
        text = capsys.readouterr().out
        return text, re.findall(r"^  (?:-h, )?--(\w[\w-]*)", text, re.MULTILINE)

    groups = {each.name: each.default for each in fields(command.Command) if each.name != "config"}
    names = {name: [each.name.replace("_", "-") for each in fields(group)] for name, group in groups.items()}
    assert shown("--help", "all")[1] == ["help", "config", *sum(names.values(), [])]
    monkeypatch.chdir(tmp_path)  # the default of --config is its path, which may take two lines
    file = written(tmp_path, "[run]\nkeep = 7\nname = 'mine'\n").name
    text, options = shown("--config", file, "-h", "run")
    assert options == ["help", *names["run"]] and "keep. (default: 7)" in text
    text, options = shown("--config", file, "--help")
    assert "--help all has all" in text and "(default: mine)" in text
    assert {"ranks", "preset", "dp", "lr", "resume", "dry-run"} < {*options}
    # In a terminal of 50 lines, two screens; with no boxes around groups, each of these has a line more.
    assert len(text.splitlines()) - len(groups) <= 100
    with pytest.raises(ValueError, match="help='runs' is unknown; use --help all, or a group of start, model,"):
        command.read(["--help", "runs"])


def written(folder, text):
    file = folder / "my.toml"
    file.write_text(text)
    return file


def test_options_win_over_the_file(tmp_path):
    text = "[steps]\nlr = 1\nbatch = 8\ncompile = true\n[run]\nresume = true\n"
    text += "[layout]\ndp = 2\n[model]\nlayers = 3\n[start]\ntimeout = 5\n"
    file = str(written(tmp_path, text))
    for words in (["--config", file, "--batch", "4"], ["--batch=4", f"--config={file}"]):
        found = command.read([*words, "--no-resume", "--compile", "--layers", "None"])
        assert found.steps == Steps(lr=1.0, batch=4, compile=True) and type(found.steps.lr) is float
        assert (found.model, found.layout, found.run) == (Model(), Layout(dp=2), Run()) and found.start.timeout == 5
    assert command.read([]) == command.Command()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[steps]\nleraning_rate = 1", "[steps] has no leraning_rate; python -m minitrain.train --help all lists"),
        ("[run]\nsave-every = 1", "[run] has no save-every; did you mean save_every in [run]"),
        ("[model]\nlr = 1", "[model] has no lr; it belongs in [steps]"),
        ("lr = 1", "lr is in no table; it belongs in [steps]"),
        ("[optimizer]\nlr = 1", "the table [optimizer] is unknown; use [start], [model], [layout], [steps], [run]"),
        ("[steps]\nlr = true", "lr in [steps] must be a number, not True"),
        ("[steps]\nbatch = 8.0", "batch in [steps] must be a whole number, not 8.0"),
        ("[steps]\ncompile = 1", "compile in [steps] must be true or false, not 1"),
        ("[steps]\nmix = ['a', 1]", "mix in [steps] must be a list of texts in quotes, not ['a', 1]"),
        ("[layout]\nzero = true", "zero in [layout] must be one of 0, 1, 2, 3, not True"),
        ("[model]\npreset = 'gpt3'", 'preset in [model] must be one of "tiny", '),
        ("\udcff", "is no TOML: "),
    ],
)
def test_mistakes_are_named(tmp_path, text, words):
    file = tmp_path / "my.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError) as error:
        command.read(["--config", str(file)])
    assert str(error.value).startswith(str(file)) and words in str(error.value)


def test_no_such_file_ends_the_command_before_ranks(tmp_path, capsys):
    assert command.run("minitrain.train", ["--config", str(tmp_path / "none.toml")]) == 2
    assert "none.toml' cannot be read: No such file or directory; give a TOML file" in capsys.readouterr().err


def test_a_run_leaves_its_settings(ranks, tmp_path):
    settings = asked(tmp_path, Layout(dp=2), steps=1, overwrite=True)
    ranks(2).run(do, settings)
    found = config.read(tmp_path / "run" / config.NAME, Settings())
    assert found == replace(settings, run=replace(settings.run, overwrite=False))
    resumed = replace(found, layout=Layout(), run=replace(found.run, resume=True))
    ranks(1).run(do, resumed)
    assert config.read(tmp_path / "run" / config.NAME, Settings()).layout == Layout(), "as it was run last"


def test_a_link_is_not_followed_and_a_full_folder_is_told(tmp_path):
    (tmp_path / "target").write_text("somebody's")
    (tmp_path / config.NAME).symlink_to(tmp_path / "target")
    config.write(tmp_path, Settings())
    assert (tmp_path / "target").read_text() == "somebody's" and not (tmp_path / config.NAME).is_symlink()
    with pytest.warns(UserWarning, match="run.toml is not written: "):
        config.write(tmp_path / "nowhere", Settings())
    with pytest.warns(UserWarning, match="run.toml is not written: "):
        config.write(tmp_path, Settings(steps=Steps(data="\udcff")))
    assert sorted(path.name for path in tmp_path.iterdir()) == [config.NAME, "target"]
