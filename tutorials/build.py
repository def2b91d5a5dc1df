"""Runs notebooks, compares them with what is stored, or copies them without outputs.

    python tutorials/build.py execute [NAME ...]    run and rewrite them with outputs
    python tutorials/build.py check [NAME ...]      run copies; fail where an output is
                                                    not the stored one
    python tutorials/build.py course FOLDER [NAME ...]
                                                    copy them without outputs into
                                                    FOLDER/students, to be given out;
                                                    solutions, slides, syllabus and exam
                                                    into FOLDER/teacher
    python tutorials/build.py grade FOLDER          run what students handed in, FOLDER/
                                                    STUDENT/NOTEBOOK.ipynb, and write
                                                    which exercise is reached as CSV
    python tutorials/build.py durations [NAME ...]  how long each takes to read, and
                                                    where the time goes

NAME is the beginning of a notebook's file name, such as 00 or 01_collectives; without
one, all notebooks.

Outputs are made so that a second run gives the same bytes: no timing is recorded,
pieces of a stream are joined, and the kernel's own version is left out. How long a
notebook takes to read is worked out and written into its first cell. Between machines
the last digits of a rounded sum may differ, and so may a point of a curve: `check` lets
numbers with a decimal point differ by one in a thousand, and all others not at all, but
for the line numbers of our modules in tracebacks and distances below 1e-9. Where a cell
shows a training that rounding leads elsewhere, in few bits for example, its tag says
so, and only its words are compared.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from traitlets.config import Config

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
PACE = {
    "words": 60 / 180,
    "lines of code": 4.0,
    "printed lines": 1.5,
    "rows": 5.0,
    "predictions": 40.0,
    "pictures": 20.0,
}  # seconds that a reader takes for one
# Characters of a line of code, without spaces: how code is wrapped makes no difference.
LINE = 42
FIRST = "first_five_minutes"  # before the chapters, without exercises
LONGEST = 45  # minutes that a chapter may take without its exercises
# Minutes for an exercise, and for one in which something is built.
EXERCISE, BUILT = 8, 20
TAKES = re.compile(
    r"(\*\*Takes\*\* about )(\d+)( minutes), and (?:about )?(\d+)( (?:more )?for its)"
)
SECONDS = 60  # a notebook's limit on two cores
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
# The tag of cells that show a text which Python ships, another in each release.
TEXT = "text-of-python"
# The tag of cells that show a training which rounding leads elsewhere, in few bits for
# example: its numbers depend on the order in which a processor adds up.
ROUNDING = "rounding-of-processor"
# The tag of cells that show on purpose that something does not hold.
SAYS_NO = "says-no"
NO = re.compile(r"\b(False|NO|not yet)\b")
# Of a claim that is 0 up to rounding, its bound and its value, as a table shows them.
ROUNDED = re.compile(r"\| 0 ± (\d\S*) \| (\d[^\s\u00a0]*)")
# A distance that is rounding alone, such as 4e-15: its size depends on the processor.
TINY = re.compile(r"\b\d(?:\.\d+)?e-1\d\b")
NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")
# A page of the player within a cell: its values are many, and say nothing of a claim.
RECORDED = 3, 11  # the Python of stored recordings; others tell of other lines
PLAYER = re.compile(r"<iframe srcdoc=.*?</iframe>", re.DOTALL)
EXERCISES = re.compile(r"#{3,5} (?:Exercise )?\d+[.:] ")
WORD = re.compile(r"[^\W_][\w'’-]*")
PICTURE = "image/svg+xml"
COORDINATE = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
# The name of a path that an SVG uses again.
NAME = re.compile(r'(?<=[="#(])[a-z]\w*\d\w*(?=[")])')
POINT = 1.0  # 1/72 inch: what has moved by less looks the same
# A place in a module of ours: an edit moves its lines.
FRAME = re.compile(r'(File "minitrain/[^"]+", line )\d+')
# Where a notebook says in which file its solutions are.
ANSWERS = re.compile(r"Solutions\s+are\s+in\s+(\[`[^\]]*\]\([^)]*\)|`[^`]*`)")
console = Console(stderr=True)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("execute", "run and rewrite notebooks"),
        ("check", "run copies and compare"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help="beginning of a file name; none: all",
        )
    command = commands.add_parser(
        "durations", help="show how long notebooks take to read"
    )
    command.add_argument(
        "names", nargs="*", metavar="NAME", help="beginning of a file name; none: all"
    )
    command = commands.add_parser("course", help="copy notebooks without outputs")
    command.add_argument("folder", type=Path, metavar="FOLDER")
    command.add_argument("names", nargs="*", metavar="NAME", help="none: all")
    command = commands.add_parser("grade", help="run what students handed in")
    command.add_argument("folder", type=Path, metavar="FOLDER")
    command.add_argument("--table", type=Path, help="the CSV file: FOLDER/grades.csv")
    command.add_argument("--limit", type=int, default=60, help="seconds for a cell")
    options = parser.parse_args(arguments)
    if options.command in ("course", "grade"):
        import teaching  # it uses this file

        if options.command == "course":
            return teaching.course(options.folder, options.names)
        table = options.table or options.folder / "grades.csv"
        return teaching.grade(options.folder, table, options.limit)
    paths = chosen(options.names)
    if options.command == "durations":
        return durations(paths)
    failed = []
    for path in paths:
        try:
            problems = run(path, rewrite=options.command == "execute")
        except (AssertionError, DeadKernelError):
            # After Ctrl-C nbclient ends the kernel, then trips over its own end.
            print(f"{path.name}: stopped before its end", file=sys.stderr, flush=True)
            os._exit(130)
        for problem in problems:
            print(f"{path.name}: {problem}", file=sys.stderr)
        failed += [path.name] if problems else []
    if failed:
        print(
            "not as it should be: " + ", ".join(dict.fromkeys(failed)), file=sys.stderr
        )
    return 1 if failed else 0


def notebooks() -> list[Path]:
    """The chapters' notebooks, in reading order."""
    return sorted(FOLDER.glob("[0-9]*.ipynb"))


def chosen(names: list[str]) -> list[Path]:
    """The notebooks whose file names begin with one of `names`; the first five minutes
    come before the chapters.

    Raises:
        SystemExit: None begins so.
    """
    every = [FOLDER / f"{FIRST}.ipynb", *notebooks()]
    for name in names:
        if not any(path.name.startswith(name) for path in every):
            known = ", ".join(path.stem for path in every)
            raise SystemExit(
                f"no notebook's name begins with {name!r}; there are {known}"
            )
    return [path for path in every if not names or path.name.startswith(tuple(names))]


def run(path: Path, rewrite: bool = False) -> list[str]:
    """Run one notebook and write it back, or compare it with what is stored; returns
    what is wrong."""
    stored = nbformat.read(path, as_version=4)
    start = time.perf_counter()
    try:
        executed = execute(stored, path.stem)
    except CellExecutionError as error:
        return [failing_cell(error)]
    seconds = time.perf_counter() - start
    console.print(
        f"{path.name}: {seconds:.0f} s"
        + (f", more than {SECONDS}" if seconds > SECONDS else "")
    )
    if problems := doubtful(executed):
        return problems
    if rewrite:
        path.write_text(written(executed), encoding="utf-8")
        return []
    problems = differences(stored, executed)
    if not problems and written(stored) != path.read_text(encoding="utf-8"):
        problems = ["the file is not as `execute` writes it; run `make notebooks`"]
    return problems


def failing_cell(error: CellExecutionError) -> str:
    """An error that nobody wanted, in words, without the colors of a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error))


def execute(notebook: Any, name: str) -> Any:
    """A copy of the notebook with the outputs of a fresh run in its own folder.

    Raises:
        CellExecutionError: A cell failed that should not.
    """
    notebook = without_outputs(notebook)
    title, *cells = [cell for cell in notebook.cells if cell.id != "install"]
    installing = nbformat.v4.new_code_cell(
        installation(), id="install", metadata={"tags": ["hide-input", "remove-cell"]}
    )
    notebook.cells = [title, installing, *cells]
    with tempfile.TemporaryDirectory() as own, progress() as bar:
        task = bar.add_task(name, total=len(notebook.cells))
        client = NotebookClient(
            notebook,
            timeout=120,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(FOLDER)}},
            # It talks through files in our folder, not through ports: nothing listens
            # to the outside.
            config=Config(KernelManager={"transport": "ipc", "ip": f"{own}/kernel"}),
            on_cell_complete=lambda cell, cell_index: bar.update(
                task, completed=cell_index + 1
            ),
        )
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        # A profile of its own: what a reader has set up for IPython must not change
        # what a notebook shows.
        client.execute(
            env={**os.environ, "PYTHONPATH": path, "IPYTHONDIR": own, "COLUMNS": "100"}
        )
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [tidy(output) for output in joined(cell.outputs)]
    notebook.cells[0].source = TAKES.sub(
        rf"\g<1>{minutes(notebook)}\g<3>, and {exercise_minutes(notebook)}\g<5>",
        notebook.cells[0].source,
    )
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    )
    return notebook


def progress() -> Progress:
    """A bar that disappears when all is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True)


def repository() -> str:
    """The repository's address, if mkdocs.yml has it."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    address = re.search(r'^repo_url: *"?([^"\s#]*)', text, re.MULTILINE)
    return address[1] if address else ""


def installation() -> str:
    """The code of a notebook's first cell, which makes it run where the package is not
    installed.

    From the repository, if mkdocs.yml has its address; else from the folder above,
    where the project is.
    """
    address = repository()
    place = f"git+{address}" if address else ".."
    return (
        "# Installs minitrain where it is missing, in Colab for example.\n"
        "# A torch that is new enough stays.\n"
        "from importlib.util import find_spec\n\n"
        f'if not find_spec("minitrain"):\n    %pip install --quiet {place}'
    )


def joined(outputs: list[Any]) -> list[Any]:
    """Pieces of a stream that follow each other as one: how a stream is cut depends on
    time."""
    result: list[Any] = []
    for output in outputs:
        last = result[-1] if result else None
        if (
            last is not None
            and output.output_type == last.output_type == "stream"
            and output.name == last.name
        ):
            last.text += output.text
        else:
            result.append(output)
    return result


def tidy(output: Any) -> Any:
    """An output without what differs from machine to machine."""
    if output.output_type == "error":
        output.traceback = [
            re.sub(r"\x1b\[[0-9;]*m", "", line) for line in output.traceback
        ]
    return output


def without_outputs(notebook: Any) -> Any:
    """A copy without outputs and numbers of cells."""
    copy: Any = nbformat.reads(nbformat.writes(notebook), as_version=4)
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return copy


def written(notebook: Any) -> str:
    """The text of the notebook's file: cells that the site folds are folded in
    JupyterLab, too."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and {"hide-input", "solution"} & set(tags(cell)):
            cell.metadata["jupyter"] = {"source_hidden": True}
        else:
            cell.metadata.pop("jupyter", None)
    nbformat.validate(notebook)
    return (
        nbformat.writes(notebook, version=4, indent=1, ensure_ascii=False).rstrip("\n")
        + "\n"
    )


def reading(notebook: Any) -> dict[str, int]:
    """What a reader meets: words of prose, lines of code and of output that are shown,
    rows of tables, predictions to make and pictures to look at.

    Exercises are left out: their time is told next to it.
    """
    met: dict[str, float] = dict.fromkeys(PACE, 0)
    cells, left_out = notebook.cells, False
    for cell, after in zip(cells, [*cells[1:], None], strict=True):
        if cell.source.startswith("## "):
            left_out = cell.source.startswith("## Exercises")
        exercise = (
            {"exercise", "check", "solution"} & set(tags(cell))
            or after
            and "exercise" in tags(after)
        )
        if left_out or exercise:
            continue
        if cell.cell_type == "markdown":
            lines = cell.source.splitlines()
            met["predictions"] += cell.source.count("**Predict")
            # The rule under the heads is none.
            met["rows"] += max(0, sum(line.startswith("|") for line in lines) - 1)
            met["words"] += sum(
                len(WORD.findall(line)) for line in lines if not line.startswith("|")
            )
            continue
        if "hide-input" not in tags(cell):
            met["lines of code"] += len("".join(cell.source.split())) / LINE
        for output in cell.outputs if "hide-output" not in tags(cell) else ():
            met["pictures"] += any(
                kind.startswith("image/") for kind in output.get("data", {})
            )
            met[
                (
                    "rows"
                    if "text/markdown" in output.get("data", {})
                    else "printed lines"
                )
            ] += lines_of(output)
    return {what: round(count) for what, count in met.items()}


def lines_of(output: Any) -> int:
    """Lines that an output shows: of a traceback its last one, which says what is
    wrong."""
    data = output.get("data", {})
    if output.get("name") == "stderr":
        return 1
    if any(kind.startswith("image/") for kind in data):
        return 0
    text = data.get("text/markdown") or data.get("text/plain") or output.get("text", "")
    return len(text.splitlines()) - ("text/markdown" in data)


def minutes(notebook: Any) -> int:
    """How long a notebook takes to read, without exercises."""
    return round(
        sum(count * PACE[what] for what, count in reading(notebook).items()) / 60
    )


def exercise_minutes(notebook: Any) -> int:
    """How long its exercises take, those who build something more."""
    heads = [
        line
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if EXERCISES.match(line)
    ]
    return sum(BUILT if "build it" in head.lower() else EXERCISE for head in heads)


def durations(paths: list[Path]) -> int:
    """Show how long notebooks take to read."""
    table = Table("notebook", *PACE, "minutes", "exercises")
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        table.add_row(
            path.stem,
            *map(str, reading(notebook).values()),
            str(minutes(notebook)),
            str(exercise_minutes(notebook)),
        )
    Console().print(table)
    return 0


def tags(cell: Any) -> list[str]:
    """The tags of a cell."""
    return cell.metadata.get("tags", [])


def doubtful(notebook: Any) -> list[str]:
    """Cells that show what a reader should not see outside exercises and *Break it*:
    something that does not hold, or a claim whose distance is more than a third of its
    bound, so that another machine may find it beyond."""
    problems, heading = [], ""
    for cell in notebook.cells:
        if cell.source.startswith("## "):
            heading = cell.source
        if cell.cell_type != "code" or {"check", "exercise", SAYS_NO} & set(tags(cell)):
            continue
        text = PLAYER.sub("", "\n".join(as_text(output) for output in cell.outputs))
        if not heading.startswith(("## Break it", "## Exercises")):
            if said := NO.search(text):
                problems.append(
                    f"cell {cell.id!r} says {said[0]!r}, without the tag {SAYS_NO}"
                )
        problems += [
            f"cell {cell.id!r} has a claim at {value}, close to its bound {bound}"
            for bound, value in ROUNDED.findall(text)
            if 3 * float(value) > float(bound)
        ]
    return problems


def differences(stored: Any, executed: Any) -> list[str]:
    """What the run gave that is not stored, cell by cell."""
    problems = []
    for old, new in zip(stored.cells, executed.cells, strict=True):
        if new.cell_type != "code":
            continue
        if old.execution_count != new.execution_count:
            problems.append(
                f"cell {new.id!r} is stored as number {old.execution_count}, not "
                f"{new.execution_count}"
            )
        before, after = (
            [as_text(output) for output in cell.outputs] for cell in (old, new)
        )
        if TEXT in tags(new):
            if len(before) != len(after):
                problems.append(
                    f"cell {new.id!r} has {len(after)} outputs, not {len(before)}"
                )
        elif ROUNDING in tags(new):
            words = [NUMBER.split("\n".join(outputs)) for outputs in (before, after)]
            if words[0] != words[1]:
                problems.append(f"cell {new.id!r} says something else")
        elif not alike("\n".join(before), "\n".join(after)):
            lines = difflib.unified_diff(
                "\n".join(before).splitlines(),
                "\n".join(after).splitlines(),
                "stored",
                "now",
                lineterm="",
                n=1,
            )
            problems.append(
                f"cell {new.id!r} gives another output:\n" + "\n".join(lines)
            )
        elif not all(map(same_picture, pictures(old), pictures(new))):
            problems.append(f"cell {new.id!r} draws another picture")
    return problems


def alike(old: str, new: str) -> bool:
    """Equal, but for lines of our modules, distances below 1e-9, and numbers with a
    decimal point, which may differ by one in a thousand."""
    if sys.version_info[:2] != RECORDED:
        old, new = (PLAYER.sub("", text) for text in (old, new))
    old, new = (TINY.sub("0", FRAME.sub(r"\1…", text)) for text in (old, new))
    if old == new:
        return True
    if NUMBER.split(old) != NUMBER.split(new):
        return False
    pairs = zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
    return all(
        math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-6) for a, b in pairs
    )


def as_text(output: Any) -> str:
    """All of an output that is text, pictures by their kind only."""
    if output.output_type == "stream":
        return f"[{output.name}]\n{output.text}"
    if output.output_type == "error":
        return "\n".join(
            ["[error]", f"{output.ename}: {output.evalue}", *output.traceback]
        )
    shown = {
        kind: "" if kind == PICTURE else data
        for kind, data in sorted(output.data.items())
    }
    return (
        "\n".join(f"[{kind}]\n{data}" for kind, data in shown.items())
        + f"\n{dict(output.metadata)}"
    )


def pictures(cell: Any) -> list[str]:
    """The pictures of a cell, as SVG."""
    return [
        output.data[PICTURE]
        for output in cell.outputs
        if "data" in output and PICTURE in output.data
    ]


def same_picture(old: str, new: str) -> bool:
    """Whether the same things are drawn, and at the same places but for one number in a
    hundred."""
    old, new = (NAME.sub("", text) for text in (old, new))
    if COORDINATE.split(old) != COORDINATE.split(new):
        return False
    pairs = zip(COORDINATE.findall(old), COORDINATE.findall(new), strict=True)
    moved = [abs(float(a) - float(b)) > POINT for a, b in pairs]
    return sum(moved) <= len(moved) / 100


if __name__ == "__main__":
    sys.exit(main())
