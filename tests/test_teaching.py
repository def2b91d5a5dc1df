"""A teacher's kit: what is given out has no answers, grading believes no file, and the syllabus names what exists."""

from __future__ import annotations

import csv
import importlib
import re
import sys
from collections import Counter
from copy import deepcopy

import pytest

from tests.test_notebooks import FOLDER, NAMES, code_cells, read, solutions, tagged

ROOT = FOLDER.parent


@pytest.fixture(scope="module")
def build():
    """tutorials/build.py under the name by which teaching.py imports it."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("build")
    sys.path.remove(str(FOLDER))


def written(notebook, path, **changed):
    """A student's file: our notebook with other sources for some cells."""
    import nbformat

    notebook = nbformat.reads(nbformat.writes(notebook), as_version=4)
    for cell in notebook.cells:
        cell.source = changed.get(cell.id.replace("-", "_"), cell.source)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def test_two_folders_and_answers_in_one(build, tmp_path):
    import nbformat

    assert build.main(["course", str(tmp_path)]) == 0
    given, kept = tmp_path / "students", tmp_path / "teacher"
    names = {f"{name}.ipynb" for name in NAMES}
    assert {path.name for path in given.rglob("*")} == names | {
        "first_five_minutes.ipynb",
        "README.md",
        "LICENSE",
        "constraints.txt",
    }
    for name in NAMES:
        text = (given / f"{name}.ipynb").read_text("utf-8")
        assert "solutions/" not in text and "%pip install --quiet .." not in text
        assert "](../" not in text, "files that a student does not have"
        for cell in code_cells(nbformat.reads(text, as_version=4)):
            assert cell.outputs == [] and cell.execution_count is None
        answer = (FOLDER / "solutions" / f"{name}.py").read_text("utf-8")
        assert (kept / "solutions" / f"{name}.py").read_text("utf-8") == answer
    assert "](01_collectives.ipynb" in (given / "00_matrix_product.ipynb").read_text("utf-8"), "but those of the course"
    assert "<!--" not in (given / "README.md").read_text("utf-8")
    assert {path.stem for path in (kept / "slides").iterdir()} == set(NAMES)
    assert "**Answer.**" in (kept / "exam.md").read_text("utf-8")
    for path in given.iterdir():
        assert "**Answer.**" not in path.read_text("utf-8"), path


def test_slides_show_a_chapter_and_load_nothing(build):
    import teaching

    for name in NAMES:
        page = teaching.slides(read(name))
        assert not re.search(r'(?:src|href)="(?:https?:)?//[^"]+\.(?:js|css)|@import|url\((?!#)', page), name
        sections = re.findall(r"<section>(.*?)</section>", page, re.DOTALL)
        assert 8 <= len(sections) <= teaching.SLIDES + teaching.FEWEST, (name, len(sections))
        assert "FORMULA" not in page
        assert any("The problem" in each for each in sections), name
        assert any("<table" in each and "The card" in each for each in sections), name
        assert sum("<svg" in each for each in sections) >= min(
            2, sum(map(len, map(build.pictures, code_cells(read(name)))))
        )
        ids = Counter(re.findall(r'\bid="([^"]+)"', "".join(each for each in sections if "<svg" in each)))
        assert max(ids.values(), default=1) == 1, (name, ids.most_common(3))
    code = "def f():\n" + "    x = 1\n\n" * 40
    screens = list(teaching.screens(code))
    assert all(each.count("\n") < teaching.SCREEN for each in screens)
    assert "".join("\n".join(screens).split()) == "".join(code.split()), "no line is lost"


@pytest.mark.slow("runs a notebook twice")
def test_grading_takes_answers_and_nothing_else(build, tmp_path, capsys, monkeypatch):
    """One student has solutions and a cell of her own, one has stubs and checks that praise them, one a broken file."""
    import nbformat

    name = "01_collectives"
    ours, answers = deepcopy(read(name)), solutions(name)
    # The title, and all that exercises need: what a notebook shows otherwise takes a minute.
    kept = {"setup", "exercise", "check"}
    ours.cells = ours.cells[:1] + [cell for cell in ours.cells if kept & {*build.tags(cell)}]
    original = tmp_path / f"{name}.ipynb"
    nbformat.write(ours, original)
    students = tmp_path / "students"
    monkeypatch.setattr(build, "notebooks", lambda: [original])
    assert [stub.id for stub in tagged(ours, "exercise")] == ["exercise-1", "exercise-2", "exercise-3"]

    def solution(exercise):
        stub = next(cell for cell in ours.cells if cell.id == exercise)
        magic = stub.source.partition("\n")[0] + "\n" if stub.source.startswith("%%") else ""
        return magic + answers[exercise, "solution"][0]

    solved = {f"exercise_{number}": solution(f"exercise-{number}") for number in (1, 2, 3)}
    written(ours, students / "ada" / f"{name}.ipynb", **solved)
    path = students / "ada" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    place = [cell.id for cell in notebook.cells].index("exercise-3")  # runs here, not on ranks
    # What the answer needs is in a cell of her own.
    head, body = "LAYERS_OF_HER_OWN = 1", "assert LAYERS_OF_HER_OWN\n" + notebook.cells[place].source
    notebook.cells[place].source = body
    notebook.cells.insert(place, nbformat.v4.new_code_cell(head))
    nbformat.write(notebook, path)

    praise = {f"check_{number}": 'print("reached: everything")' for number in (1, 2, 3)}
    written(ours, students / "bob" / "homework.ipynb", **praise)  # known by its title
    (students / "dan").mkdir()
    (students / "dan" / f"{name}.ipynb").write_text('{"cells": [')

    assert build.main(["grade", str(students), "--limit", "60"]) == 0
    with (students / "grades.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["student", *(f"{name}/exercise-{number}" for number in (1, 2, 3))]
    marks = {student: found for student, *found in rows}
    assert marks["ada"] == ["reached"] * 3
    assert marks["bob"] == ["not yet"] * 3
    assert marks["dan"] == ["error"] * 3
    assert "cannot be read" in capsys.readouterr().err


def test_the_syllabus_names_what_exists():
    text = (ROOT / "docs" / "teaching.md").read_text("utf-8")
    lectures = re.split(r"^### (\d+)\. (.+)$", text, flags=re.MULTILINE)[1:]
    numbers, titles, bodies = lectures[::3], lectures[1::3], lectures[2::3]
    assert list(map(int, numbers)) == list(range(1, 13))
    known = {name.partition("_")[0]: name for name in NAMES}
    for title, body in zip(titles, bodies, strict=True):
        assert len(re.findall(r"^- ", body, re.MULTILINE)) == 3, f"{title}: three objectives"
        assert "**Leave out**: " in body
        chapters = re.findall(r"\b\d\d[a-c]?\b", body.partition("**Chapters**: ")[2].partition("\n")[0])
        assert chapters and set(chapters) <= set(known), title
        homework = body.partition("**Homework**: ")[2].partition(".")[0].split("; ")
        for part in homework:
            chapter, exercises = re.fullmatch(r"(\d\d[a-c]?) exercises? ([\d, and]+)", part).groups()
            assert chapter in chapters, f"{title}: homework from a chapter that it does not take"
            there = {cell.id for cell in tagged(read(known[chapter]), "exercise")}
            assert {f"exercise-{number}" for number in re.findall(r"\d+", exercises)} <= there, (title, part)
    exam = (FOLDER / "solutions" / "exam.md").read_text("utf-8")
    parts = re.split(r"^## \d+\. (.+)$", exam, flags=re.MULTILINE)[1:]
    assert parts[::2] == titles
    for title, part in zip(parts[::2], parts[1::2], strict=True):
        assert re.findall(r"^\*\*(Question|Answer)\.\*\*", part, re.MULTILINE) == ["Question", "Answer"] * 2, title
