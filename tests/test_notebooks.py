"""The notebooks: their form, and every exercise with its stub, its solution and a typical mistake.

That they run and show what is stored is checked by test_notebooks_run.py.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tokenize
from functools import cache
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest

from tests import wild
from tests.drawn import drawn

FOLDER = Path(__file__).parents[1] / "tutorials"
NAMES = [path.stem for path in sorted(FOLDER.glob("[0-9]*.ipynb"))]
DRAWN = drawn(NAMES, 10, "notebooks")  # those that `make test` runs, with their exercises
# Headings that every notebook has, in this order; between them stand the chapter's own.
PARTS = ("The problem", "Break it", "Exercises", "In the wild", "The card", "Sources")
all_notebooks = pytest.mark.parametrize("name", NAMES)


@cache
def read(name):
    import nbformat  # takes seconds: not while tests are collected, which each worker does

    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.fixture
def notebook(name):
    return read(name)


@pytest.fixture(scope="module")
def build():
    return load_build()


def load_build():
    """tutorials/build.py, which is a script and is in no package."""
    spec = importlib.util.spec_from_file_location("tutorials_build", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def tagged(notebook, tag):
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_as_text(notebook):
    """(cell's id, text) of every output; pictures are left out."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            texts = [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", [])]
            texts += [data for kind, data in output.get("data", {}).items() if not kind.startswith("image/")]
            yield cell.id, "\n".join(texts)


def test_every_chapter_has_its_notebook_and_solutions():
    packages = {path.parent.name for path in (FOLDER.parent / "minitrain").glob("*/__init__.py")}
    chapters = {re.sub(r"^\d+[a-z]?_", "", name) for name in NAMES}
    assert chapters <= packages
    assert sorted(path.stem for path in (FOLDER / "solutions").glob("*.py")) == NAMES


@all_notebooks
def test_parts_stand_in_order(name, notebook):
    first = notebook.cells[0].source
    assert re.match(r"# \S", first)
    assert all(f"**{word}**" in first for word in ("Builds on", "Takes", "Afterwards"))
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    parts = PARTS
    assert [part for heading in headings for part in parts if heading.startswith(part)] == list(parts)
    assert [each for each in headings if "end of the course" not in each][-4:] == list(parts[-4:])


@all_notebooks
def test_names_of_cells_and_width_of_code(name, notebook, build):
    names = [cell.id for cell in notebook.cells]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]+", cell) for cell in names), "an id is a name, not chance"
    first, *_ = code_cells(notebook)
    assert first.id == "install" and first.source == build.installation() and not first.outputs
    wide = [(cell.id, line) for cell in code_cells(notebook) for line in cell.source.splitlines() if len(line) > 88]
    assert not wide
    assert wild.AS_OF.search(wild.section(FOLDER / f"{name}.ipynb")), "names in other projects say as of when"


@all_notebooks
def test_stored_as_executed_from_top_to_bottom(name, notebook, build):
    assert [cell.execution_count for cell in code_cells(notebook)] == list(range(1, len(code_cells(notebook)) + 1))
    assert build.written(notebook) == (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    for cell in code_cells(notebook):
        assert not any(output.output_type == "error" for output in cell.outputs), cell.id
        failing = "--expect-error" in cell.source.partition("\n")[0]
        assert failing == any(output.get("name") == "stderr" for output in cell.outputs), cell.id


@all_notebooks
def test_what_is_shown_holds(name, notebook, build):
    assert build.doubtful(notebook) == []


def test_what_does_not_hold_is_refused(build):
    import nbformat

    def said(text, heading="## Step by step", **metadata):
        cell = nbformat.v4.new_code_cell(
            "f()", id="cell", metadata=metadata, outputs=[nbformat.v4.new_output("stream", text=text)]
        )
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(heading), cell])
        return [problem.split("cell' ")[1] for problem in build.doubtful(notebook)]

    assert said("all bits equal: True, no Falsehood, NONE") == []
    for word in ("False", "NO", "not yet"):
        assert said(f"[rank 0] {word}: x") == [f"says {word!r}, without the tag says-no"]
        assert said(word, "## Break it") == said(word, "## Exercises") == said(word, tags=["says-no"]) == []
        assert said(word, tags=["check"]) == []
    assert said("| off by | 0 | 0 ± 3.0e-13 | 0.9e-13 | compared | yes |") == []
    assert said("| off by | 0 | 0 ± 3.0e-13 | 1.1e-13 | compared | yes |") == [
        "has a claim at 1.1e-13, close to its bound 3.0e-13"
    ]


@all_notebooks
def test_durations_are_worked_out(name, notebook, build):
    said = build.TAKES.search(notebook.cells[0].source)
    assert int(said[2]) == build.minutes(notebook) <= build.LONGEST
    assert int(said[4]) == build.exercise_minutes(notebook) > 0


@all_notebooks
def test_outputs_name_no_place_of_one_machine(name, notebook):
    for cell, text in outputs_as_text(notebook):
        assert not re.search(
            r"/(home|tmp|root|usr|Users|private|var|opt)/|site-packages|0x[0-9a-f]{6}|\bpid\b", text
        ), cell


@all_notebooks
def test_every_picture_has_alt_text(name, notebook):
    pictures = 0
    for cell in code_cells(notebook):
        for output in cell.outputs:
            for kind in output.get("data", {}):
                if kind.startswith("image/"):
                    pictures += 1
                    alt = output.metadata.get(kind, {}).get("alt") or cell.metadata.get("alt", "")
                    assert len(alt) > 20, cell.id
    assert pictures, "a chapter has at least one picture"


@all_notebooks
def test_small_forms_are_those_of_the_files(name, notebook):
    shown = {}
    for cell in tagged(notebook, "small-form"):
        magic, comment, *rest = cell.source.splitlines()
        assert magic == "%%ranks"
        named = r"# (minitrain/(?:\w+/)?\w+\.py), without its head and imports(?: \(\d of \d\))?"
        module = re.fullmatch(named, comment)
        assert module, f"{cell.id}: its second line names the file"
        file = (FOLDER.parent / module[1]).read_text(encoding="utf-8")
        ours = definitions("\n".join(rest))
        assert ours, cell.id
        assert ours == {each: text for each, text in definitions(file).items() if each in ours}, cell.id
        shown.setdefault(module[1], set(definitions(file))).difference_update(ours)
    assert not any(shown.values()), f"of these files something is not shown: {shown}"


def definitions(source):
    """The functions and classes of a module, by name: their code, and the words of docstrings and comments.

    How lines are broken makes no difference: 120 columns in files, 88 in notebooks, where a comment may move to a line
    of its own and then be a sentence.
    """
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = ast.get_source_segment(source, node)
            tokens = tokenize.generate_tokens(StringIO(text).readline)
            comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
            said = re.findall(r"\w+", " ".join(each for each in comments if not each.startswith("# type:")).lower())
            for part in ast.walk(node):
                if isinstance(part, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(part):
                    part.body[0].value.value = " ".join(ast.get_docstring(part).split())
            found[node.name] = (ast.dump(node), sorted(said))
    return found


@all_notebooks
def test_three_exercises_with_a_number_and_a_check_each(name, notebook):
    cells = [cell.id for cell in notebook.cells]
    stubs, checks = tagged(notebook, "exercise"), tagged(notebook, "check")
    assert len(stubs) == len(checks) >= 3
    for stub, check in zip(stubs, checks, strict=True):
        assert cells.index(check.id) == cells.index(stub.id) + 1
        assert "**To reach: " in notebook.cells[cells.index(stub.id) - 1].source
        assert [verdict(output.text) for output in check.outputs] == ["not yet"]
    assert {(stub.id, kind) for stub in stubs for kind in ("solution", "mistake")} == set(solutions(name))
    assert tagged(notebook, "setup"), "the cells that exercises need, and nothing else does, have the tag `setup`"


def verdict(text):
    """What a check says: "reached" if all ranks say so, "not yet" if one says that, and "" if it says neither."""
    lines = [re.sub(r"^\[[^]]*\] ", "", line) for line in text.splitlines()]  # a cell with %%ranks names the ranks
    said = {word for line in lines for word in ("reached", "not yet") if line.startswith(f"{word}: ")}
    return "not yet" if "not yet" in said else "".join(said)


def solutions(name):
    """{(exercise's id, "solution" or "mistake"): (source, what the check says)}."""
    text = (FOLDER / "solutions" / f"{name}.py").read_text(encoding="utf-8")
    parts = re.split(r"^# %% ([\w-]+): (solution|mistake)(?:: (.*))?$", text, flags=re.MULTILINE)[1:]
    found = {}
    for exercise, kind, words, source in zip(*(iter(parts),) * 4, strict=True):
        found[exercise, kind] = source, words
    return found


@pytest.fixture(scope="module")
def shells():
    """For each notebook an IPython session in this process that has run the cells with the tag `setup`."""
    from IPython.core.interactiveshell import InteractiveShell

    open_shells = {}

    def shell(name):
        if name not in open_shells:
            InteractiveShell.clear_instance()
            for other in open_shells.values():
                end(other)
            open_shells.clear()
            open_shells[name] = InteractiveShell.instance(user_ns={})
            for cell in tagged(read(name), "setup"):
                said(open_shells[name], cell.source)
        return open_shells[name]

    yield shell
    for other in open_shells.values():
        end(other)
    InteractiveShell.clear_instance()


def end(shell):
    from minitrain.ranks import Ranks

    for value in list(shell.user_ns.values()):
        if isinstance(value, Ranks):
            value.close()


def said(shell, source):
    """What a cell prints; it must not fail."""
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        result = shell.run_cell(source, store_history=True)
    result.raise_error()
    return captured.stdout


def exercises():
    for name in NAMES:
        marks = [] if name in DRAWN else pytest.mark.slow("not drawn")
        for exercise in dict.fromkeys(exercise for exercise, _ in solutions(name)):
            yield pytest.param(name, exercise, marks=marks, id=f"{name}-{exercise}")


@pytest.mark.parametrize(("name", "exercise"), list(exercises()))
def test_the_check_knows_stub_solution_and_mistake(shells, name, notebook, exercise):
    stubs, checks = tagged(notebook, "exercise"), tagged(notebook, "check")
    stub, check = next(pair for pair in zip(stubs, checks, strict=True) if pair[0].id == exercise)
    shell = shells(name)
    magic = stub.source.partition("\n")[0] + "\n" if stub.source.startswith("%%") else ""
    variants = solutions(name)
    solution, _ = variants[stub.id, "solution"]
    mistake, words = variants[stub.id, "mistake"]
    target = re.search(r"\*\*To reach: ([^*]+?)\.?\*\*", before(name, stub))[1]

    said(shell, stub.source)
    assert verdict(said(shell, check.source)) == "not yet"
    said(shell, magic + mistake)
    answer = said(shell, check.source)
    assert verdict(answer) == "not yet" and words in answer
    said(shell, magic + solution)
    answer = said(shell, check.source)
    assert verdict(answer) == "reached"
    assert re.findall(r"\d+", target)[0] in answer, "the check names the number to reach"


def before(name, stub):
    """The text above an exercise."""
    cells = read(name).cells
    return cells[[cell.id for cell in cells].index(stub.id) - 1].source


@all_notebooks
def test_no_level_of_headings_is_left_out(name, notebook):
    """What a screen reader, and the page's table of contents, would take for a gap."""
    text = re.sub(r"(?ms)^```.*?^```", "", "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown"))
    levels = [len(marks) for marks in re.findall(r"(?m)^(#+) ", text)]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))


@all_notebooks
def test_every_picture_is_shown_and_no_name_is_missing(name, notebook):
    """A picture that is not a cell's last line is drawn and not shown; a cell that is to fail may fail otherwise."""
    for cell in code_cells(notebook):
        if cell.source.startswith("%"):
            continue
        drawn = [line for line in cell.source.splitlines() if line.startswith("picture(")]
        shown = [output for output in cell.outputs if "image/svg+xml" in output.get("data", {})]
        assert len(drawn) <= len(shown), cell.id
    assert not [cell.id for cell in code_cells(notebook) if "NameError" in str(cell.outputs)]
