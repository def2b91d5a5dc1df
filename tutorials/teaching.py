"""What a teacher needs: a folder to give out, one to keep with slides, and grading.

`python tutorials/build.py course` and `… grade` are its command lines.
"""

from __future__ import annotations

import asyncio
import csv
import html
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from traitlets.config import Config

# What is given out, and what stays with the teacher.
GIVEN, KEPT = "students", "teacher"
# A check's verdict on a rank: a cell with %%ranks names the rank before it.
VERDICT = re.compile(r"^(?:\[[^]]*\] )?(reached|not yet): ", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)\s]+)\)")
FORMULA = re.compile(
    r"\$\$(.+?)\$\$|(?<![\\$\w])\$([^$\n]+(?:\n[^$\n]+)?)\$", re.DOTALL
)
SLIDES = 12  # of a chapter, or more if its small form takes many
FEWEST = 4  # pictures and questions, however long the small form is
SCREEN = 30  # lines of code on a slide


def course(folder: Path, names: list[str]) -> int:
    """Write what a class is given, notebooks without outputs, and apart from it what
    the teacher keeps: solutions, exam, syllabus and slides."""
    given, kept = folder / GIVEN, folder / KEPT
    paths = build.chosen(names)
    for each in (given, kept / "slides", kept / "solutions"):
        each.mkdir(parents=True, exist_ok=True)
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        alone = handout(notebook, {each.name for each in paths})
        (given / path.name).write_text(build.written(alone), "utf-8")
        if path.stem == build.FIRST:
            continue
        (kept / "slides" / f"{path.stem}.html").write_text(slides(notebook), "utf-8")
        answers = build.FOLDER / "solutions" / f"{path.stem}.py"
        shutil.copyfile(answers, kept / "solutions" / answers.name)
    address = build.repository()
    readme = (build.FOLDER / "students.md").read_text("utf-8")
    place = f"git+{address}" if address else "FOLDER  # of minitrain, from your teacher"
    versions = (build.ROOT / "constraints.txt").read_text("utf-8")
    (given / "constraints.txt").write_text(versions, "utf-8")
    torch = next(line for line in versions.split() if line.startswith("torch=="))
    readme = readme.replace("<!-- place -->", place).replace("<!-- torch -->", torch)
    (given / "README.md").write_text(readme, "utf-8")
    shutil.copyfile(build.ROOT / "LICENSE", given / "LICENSE")
    for source in (
        build.ROOT / "docs" / "teaching.md",
        build.FOLDER / "solutions" / "exam.md",
    ):
        text = LINK.sub(r"\1", source.read_text("utf-8"))
        name = "syllabus.md" if source.name == "teaching.md" else source.name
        (kept / name).write_text(text, "utf-8")
    print(
        f"{given}: {len(paths)} notebooks without outputs, to be given out\n"
        f"{kept}: their solutions and slides, a syllabus and exam questions"
    )
    return 0


def handout(notebook: Any, given: set[str]) -> Any:
    """A copy without outputs that does not say where the solutions are, nor looks for
    the package in the folder above; of links to files, those in `given` stay."""
    address = build.repository().rstrip("/")

    def link(match: re.Match[str]) -> str:
        file = match[2].partition("#")[0]
        if file in given or not (build.FOLDER / file).is_file():
            return match[0]
        inside = os.path.relpath(build.FOLDER / match[2], build.ROOT)
        return f"[{match[1]}]({address}/blob/HEAD/{inside})" if address else match[1]

    notebook = build.without_outputs(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(
                link,
                build.ANSWERS.sub("Your teacher has the solutions", cell.source),
            )
        elif cell.id == "install":
            cell.source = cell.source.replace(
                "%pip install --quiet ..",
                'raise ImportError("minitrain is missing: see README.md")',
            )
    return notebook


# Grading


def grade(folder: Path, table: Path, limit: int) -> int:
    """Run every notebook below `folder`, whose folders are the students', and write
    student × exercise as CSV: reached, not yet, or error.

    Args:
        folder: with a folder for each student.
        table: the CSV file.
        limit: seconds for a cell; a notebook may take ten times as long.
    """
    handed_in = [
        path
        for path in sorted(folder.glob("*/**/*.ipynb"))
        if ".ipynb_checkpoints" not in path.parts
    ]
    if not handed_in:
        raise SystemExit(f"{folder} has no STUDENT/NOTEBOOK.ipynb")
    marks: dict[str, dict[str, str]] = {}
    with build.progress() as bar:
        task = bar.add_task("", total=len(handed_in))
        for path in handed_in:
            student = path.relative_to(folder).parts[0]
            bar.update(task, description=f"{student}/{path.name}")
            row = marks.setdefault(student, {})
            if original := original_of(path):
                row |= graded(original, path, limit)
            else:
                build.console.print(f"{path}: of none of the chapters, left out")
            bar.advance(task)
    order = [path.stem for path in build.notebooks()]
    columns = sorted(
        {each for row in marks.values() for each in row},
        key=lambda each: (order.index(each.split("/")[0]), each),
    )
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["student", *columns])
        for student, row in marks.items():
            writer.writerow([student, *(row.get(each, "") for each in columns)])
    print(f"{len(marks)} students, {len(columns)} exercises: {table}")
    return 0


def original_of(path: Path) -> Path | None:
    """Our notebook that a student's file is a copy of: by its name, else its title."""
    for original in build.notebooks():
        if path.name.startswith(original.stem):
            return original
    try:
        title = nbformat.read(path, as_version=4).cells[0].source.partition("\n")[0]
    except Exception:  # whatever a student's file is
        return None
    for original in build.notebooks():
        if nbformat.read(original, 4).cells[0].source.partition("\n")[0] == title:
            return original
    return None


def graded(original: Path, path: Path, limit: int) -> dict[str, str]:
    """What our checks say of a student's answers.

    An answer that fails may take the ranks with it, and what comes after fails, too. So
    what follows it and is not reached is tried again, next to the answers that are.
    """
    ours = nbformat.read(original, as_version=4)
    exercises = [cell.id for cell in ours.cells if "exercise" in build.tags(cell)]
    try:
        theirs = answers(nbformat.read(path, as_version=4))
    except Exception as error:
        build.console.print(f"{path}: cannot be read: {error}")
        theirs = {}
    found = dict.fromkeys(exercises, "error")
    if theirs:
        found = verdicts(ours, theirs, limit)
    failed = [each for each in exercises if found[each] == "error"]
    for exercise in exercises[exercises.index(failed[0]) + 1 :] if failed else ():
        if found[exercise] != "reached" and exercise in theirs:
            kept = {each for each in exercises if found[each] == "reached"}
            some = {each: theirs[each] for each in kept | {exercise}}
            found[exercise] = verdicts(ours, some, limit)[exercise]
    return {f"{original.stem}/{exercise}": found[exercise] for exercise in exercises}


def answers(notebook: Any) -> dict[str, tuple[str, ...]]:
    """Of each exercise its cell, after cells that the student has put before it.

    By the cell's id, which Colab moves into the metadata.
    """
    ours = {
        cell.id
        for path in build.notebooks()
        for cell in nbformat.read(path, as_version=4).cells
    }
    found, added = {}, []
    for cell in notebook.cells:
        name = cell.metadata.get("id") or cell.get("id", "")
        if cell.cell_type == "code" and name not in ours:
            added.append(cell.source)
        elif re.fullmatch(r"exercise-\d+", name):
            found[name] = (*added, cell.source)
            added = []
    return found


def verdicts(
    ours: Any, theirs: dict[str, tuple[str, ...]], limit: int
) -> dict[str, str]:
    """Run our notebook with a student's answers in place of the stubs.

    Every other cell is ours, the checks above all, and no stored output is looked at.
    """
    notebook = build.without_outputs(ours)
    cells: list[Any] = []
    for cell in notebook.cells:
        for source in theirs.get(cell.id, ())[:-1]:
            cells.append(nbformat.v4.new_code_cell(source))
        if cell.id in theirs:
            cell.source = theirs[cell.id][-1]
        cells.append(cell)
    last = max(place for place, cell in enumerate(cells) if "check" in build.tags(cell))
    notebook.cells = [cell for cell in cells[: last + 1] if cell.cell_type == "code"]
    run(notebook, limit)
    found, exercise = {}, ""
    for cell in notebook.cells:
        if "exercise" in build.tags(cell):
            exercise = cell.id
        elif "check" in build.tags(cell):
            missing = exercise not in theirs and theirs
            found[exercise] = "error" if missing else verdict(cell)
    return found


def run(notebook: Any, limit: int) -> None:
    """Run it in a fresh kernel; errors stay in its outputs."""
    with tempfile.TemporaryDirectory() as own:
        client = NotebookClient(
            notebook,
            timeout=limit,
            interrupt_on_timeout=True,
            allow_errors=True,
            kernel_name="python3",
            resources={"metadata": {"path": str(build.FOLDER)}},
            config=Config(KernelManager={"transport": "ipc", "ip": f"{own}/kernel"}),
        )
        client.log.disabled = True  # a cell that takes too long is no news
        path = os.pathsep.join(
            filter(None, (str(build.ROOT), os.environ.get("PYTHONPATH")))
        )
        environment = {**os.environ, "PYTHONPATH": path, "IPYTHONDIR": own}
        running = client.async_execute(env=environment)
        try:
            asyncio.run(asyncio.wait_for(running, 10 * limit))
        except (TimeoutError, DeadKernelError):
            pass  # what did not come to an end has no verdict


def verdict(cell: Any) -> str:
    """What a check says: "reached" if all ranks do, "not yet" if one says that, and
    "error" if it failed or says neither."""
    if any(output.output_type == "error" for output in cell.outputs):
        return "error"
    text = "".join(output.get("text", "") for output in build.joined(cell.outputs))
    said = set(VERDICT.findall(text))
    return "not yet" if "not yet" in said else "".join(said) or "error"


# Slides


def slides(notebook: Any) -> str:
    """A chapter as slides in one file that loads nothing: its problem, questions and
    pictures in their order, the small form, the card."""
    shown = list(parts(notebook))
    room = max(FEWEST, SLIDES - sum(kind != "some" for kind, _ in shown))
    some = [place for place, (kind, _) in enumerate(shown) if kind == "some"]
    # Pictures before questions, and both from all of the chapter.
    some.sort(key=lambda place: ("<svg" not in shown[place][1], place))
    left_out = set(some[room:])
    page = "\n".join(
        f"<section>{body}</section>"
        for place, (_, body) in enumerate(shown)
        if place not in left_out
    )
    title = notebook.cells[0].source.partition("\n")[0].removeprefix("# ")
    frame = (build.FOLDER / "slides.html").read_text("utf-8")
    return frame.replace("<!-- title -->", html.escape(title)).replace(
        "<!-- slides -->", page
    )


def parts(notebook: Any) -> Iterator[tuple[str, str]]:
    """("all" or "some", the slide's HTML): those of "some" are left out where there are
    too many."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    heading = ""
    for number, cell in enumerate(notebook.cells):
        text = cell.source
        if cell.cell_type == "markdown":
            if found := re.findall(r"^#{2,3} (.+)$", text, re.MULTILINE):
                heading = found[-1]
            if number == 0:
                after = text.partition("**Afterwards** ")[2].partition("\n\n")[0]
                after = re.sub(r"\sThe\s\[glossary\].*", "", after)
                yield "all", prose(f"{text.splitlines()[0]}\n\nAfterwards {after}")
            elif text.startswith("## The problem"):
                yield "all", prose("\n\n".join(text.split("\n\n")[:3]))
            elif text.startswith("## The card"):
                for table in text.split("\n\n"):
                    if table.startswith("|"):
                        yield "all", prose(f"## The card\n\n{table}")
            else:
                for paragraph in text.split("\n\n"):
                    if paragraph.startswith("**Predict"):
                        yield "some", prose(f"## {heading}\n\n{paragraph}")
        elif "small-form" in build.tags(cell):
            pages = list(screens(cell.source))
            for page, code in enumerate(pages, 1):
                head = "The small form" + f", {page} of {len(pages)}" * (len(pages) > 1)
                colored = highlight(code, PythonLexer(), HtmlFormatter(nowrap=True))
                yield "all", prose(f"## {head}") + f"<pre>{colored}</pre>"
        elif not {"check", "exercise"} & set(build.tags(cell)):
            for picture in build.pictures(cell):
                svg = picture[picture.index("<svg") :]
                yield "some", prose(f"## {heading}") + unique(svg, f"s{number}-")


def screens(code: str) -> Iterator[str]:
    """Code in pieces that a room can read, cut at empty lines; of docstrings the first
    paragraph."""
    code = re.sub(
        r'"""(.*?)"""',
        lambda docstring: f'"""{docstring[1].partition(chr(10) * 2)[0]}"""',
        code,
        flags=re.DOTALL,
    )
    blocks: list[list[str]] = []
    for block in re.split(r"\n\n+", code.strip()):
        lines = block.splitlines()
        size = math.ceil(len(lines) / math.ceil(len(lines) / SCREEN))
        blocks += [lines[first : first + size] for first in range(0, len(lines), size)]
    screen: list[str] = []
    for lines in blocks:
        if len(screen) + 1 + len(lines) > SCREEN:
            yield "\n".join(screen)
            screen = []
        screen += [*([""] if screen else []), *lines]
    yield "\n".join(screen)


def unique(svg: str, prefix: str) -> str:
    """A picture whose names are no other picture's."""
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", svg)


def prose(markdown: str) -> str:
    """Markdown as HTML: formulas become MathML, links to other files their words."""
    from nbconvert.filters.markdown import markdown2html

    sys.path.insert(0, str(build.ROOT / "docs" / "hooks"))
    from mathematics import to_mathml

    def formula(match: re.Match[str]) -> str:
        made.append(to_mathml(match[1] or match[2], block=bool(match[1])))
        return f"FORMULA{len(made) - 1}FORMULA"

    made: list[str] = []
    page = markdown2html(FORMULA.sub(formula, LINK.sub(r"\1", markdown)))
    page = re.sub(r'<a class="anchor-link".*?</a>|(?<=<h\d) id="[^"]*"', "", page)
    return re.sub(r"FORMULA(\d+)FORMULA", lambda match: made[int(match[1])], page)
