"""The house keeps its promises: how little a reader opens for a technique, which way imports point, and no circle."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from minitrain.lessons.listing import CHAPTERS as LISTED

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "minitrain"
FILES = sorted(PACKAGE.rglob("*.py"))

# What a package may import besides itself and the chapters before it. `costs` imports nothing of ours.
GROUND = ("comm", "models", "data")
CHAPTERS = tuple(chapter for chapter in LISTED if chapter != "trainer")
# Files of a chapter's own folder that are no small form, because they have one form only: what puts a technique to use
# (a whole GPT, any schedule), or a subject of its own around the techniques.
ONE_FORM = (
    "collectives/all_to_all",
    "sequence_parallel/megatron",
    "pipeline_parallel/schedules",
    "pipeline_parallel/executor",
    "pipeline_parallel/splitting",
    "pipeline_parallel/weight_gradients",
    "mixture_of_experts/moe_gpt",
    "checkpointing/checkpoint",
    "planning/plan",
)
WITHOUT_SMALL_FORMS = ("composition", "recommender")  # chapters about whole trainings and tables
# Small forms that are put together from several others: as short, but a reader opens these others first.
COMPOSED = ("tensor_parallel/gpt", "composition/three_axes")

# Every other file of a chapter's folder is a technique's small form: 60 lines of code, and three files of ours that it
# opens, itself included, at most.
SMALL_FORMS = [
    form
    for chapter in CHAPTERS
    if chapter not in WITHOUT_SMALL_FORMS
    for path in sorted((PACKAGE / chapter).glob("[a-z]*.py"))
    if (form := f"{chapter}/{path.stem}") not in (*COMPOSED, *ONE_FORM)
]
ARROWS: dict[str, tuple[str, ...]] = {
    "costs": (),
    "comm": ("watch",),  # a world starts the checks, and a clock watches messages
    "watch": ("comm",),
    "player": ("comm", "watch"),
    "ranks": ("comm", "watch", "player"),
    "models": (),
    "data": ("comm",),  # its lock and its words for a terminal
    **{chapter: (*GROUND, *CHAPTERS[:number]) for number, chapter in enumerate(CHAPTERS)},
    "trainer": (*GROUND, *CHAPTERS, "ranks", "watch", "costs"),
    "train": ("comm", "data", "composition", "trainer"),
    "lessons": (*GROUND, *CHAPTERS, "ranks", "watch", "player", "costs", "trainer", "train"),
    "benchmarks": (*GROUND, *CHAPTERS, "ranks", "costs", "trainer", "train", "lessons"),
    "tour": ("lessons",),
    "plan": ("planning",),
    "prepare": ("data",),
    "generate": ("trainer",),
    "evaluate": ("trainer",),
    "export": ("trainer",),
    "compare": ("trainer",),
    "first_hour": ("benchmarks",),
}
ARROWS["planning"] += ("costs",)  # the dry run is theory put together
ARROWS["composition"] += ("craft",)  # whose schedules the trainer's learning rate follows


def skipped(node: ast.stmt) -> bool:
    """Whether a statement is `if TYPE_CHECKING:` or `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id in ("TYPE_CHECKING", "__name__") for part in ast.walk(node.test)
    )


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def imports(path: Path) -> frozenset[Path]:
    """Our files that a file imports, also within functions; a public name of a package counts as the file it is in."""
    found = set()
    for node in (part for statement in tree(path).body if not skipped(statement) for part in ast.walk(statement)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            for alias in node.names:
                found |= files_of(node.module or "", alias.name)
        elif isinstance(node, ast.Import):
            found |= {file for alias in node.names for file in files_of(*alias.name.rpartition(".")[::2])}
    return frozenset(found - {path})


def files_of(module: str, name: str) -> set[Path]:
    """Where `from module import name` finds the name."""
    if module.split(".")[0] != "minitrain":
        return set()
    base = ROOT.joinpath(*module.split("."))
    if base.with_suffix(".py").is_file():
        return {base.with_suffix(".py")}
    if (base / f"{name}.py").is_file():
        return {base / f"{name}.py"}
    init = base / "__init__.py"
    if not init.is_file():
        return set()
    inside = [node for node in ast.walk(tree(init)) if isinstance(node, ast.ImportFrom) and node.module != module]
    return {
        file for node in inside if any(a.name == name for a in node.names) for file in files_of(node.module or "", name)
    }


def opened(path: Path) -> set[Path]:
    """All files of ours that a reader of this one has before them, itself included."""
    seen, left = {path}, [path]
    while left:
        new = imports(left.pop()) - seen
        seen |= new
        left += new
    return seen


def code_lines(path: Path) -> tuple[int, int]:
    """Lines of code, and lines that are a comment of their own: without docstrings, and without the lesson's start."""
    without: set[int] = set()
    for node in ast.walk(tree(path)):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and body:
            first = body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                without.update(range(first.lineno, (first.end_lineno or 0) + 1))
    for node in tree(path).body:
        if skipped(node):
            without.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = [
        line.strip() for number, line in enumerate(path.read_text("utf-8").splitlines(), 1) if number not in without
    ]
    comments = sum(line.startswith("#") for line in lines)
    return sum(bool(line) for line in lines) - comments, comments


@pytest.mark.parametrize("technique", [*SMALL_FORMS, *COMPOSED])
def test_a_small_form_is_small(technique):
    path = PACKAGE / f"{technique}.py"
    lines, comments = code_lines(path)
    files = sorted(str(file.relative_to(PACKAGE)) for file in opened(path))
    print(f"{technique:40} {lines:3} lines of code, {len(files)} files")
    assert lines <= 60
    assert 100 * comments >= 8 * lines, "eight comments of their own per hundred lines, at the lines that they explain"
    assert len(files) <= 3 or technique in COMPOSED, files


# Of the package's own folder, beside the loop: ten lines of code at most.
BESIDE_THE_LOOP = (
    "__init__",
    "__main__",
    "tour",
    "plan",
    "prepare",
    "generate",
    "evaluate",
    "export",
    "compare",
    "first_hour",
)


def forms_of_one_name(package: Path) -> list[str]:
    """`file.name` of each small form whose name the package itself gives to the full form."""
    home = next(
        (ast.literal_eval(node.value) for node in tree(package / "__init__.py").body
         if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_HOME"),
        {},
    )  # fmt: skip
    full = {name for name, file in home.items() if file.startswith("full.")}
    return [
        f"{file.stem}.{node.name}"
        for file in sorted(package.glob("*.py"))
        for node in tree(file).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in full
    ]


def test_where_a_name_means_two_forms_the_package_says_which_is_which():
    packages = [file.parent for file in PACKAGE.glob("*/__init__.py")]
    both = {package: forms for package in packages if (forms := forms_of_one_name(package))}
    assert sum(map(len, both.values())) > 20
    for package, forms in both.items():
        said = " ".join((ast.get_docstring(tree(package / "__init__.py")) or "").split())
        assert "names that the package itself has are full forms" in said, package
        assert [form for form in forms if f"`{form}`" not in said] == [], package


def test_what_the_readme_and_the_landing_page_say_of_small_forms():
    for page in ("README.md", "docs/index.md"):
        said = " ".join((ROOT / page).read_text("utf-8").split())
        assert "at most 60 lines of code, readable with at most two other files open" in said


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_readme_of_a_chapter_is_what_its_files_say(chapter):
    from tests.readmes import readme  # here, since it counts lines by this file

    written = (PACKAGE / chapter / "README.md").read_text("utf-8")
    assert written == readme(chapter), "write them anew: python -m tests.readmes"


def test_names_that_others_use_are_in_the_heads():
    """A name of the glossary's last table is found in the head of a file by `grep -i`."""
    heads = " ".join((ast.get_docstring(tree(path)) or "").lower() for path in FILES if "lessons" not in path.parts)
    heads = " ".join(heads.split())
    table = (ROOT / "docs" / "glossary.md").read_text("utf-8").partition("## Also called")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    missing = []
    for _, elsewhere in rows:
        names = re.sub(r"\([^)]*\)", "", elsewhere).split(". ")[0]  # whose they are; what is said about them
        for name in re.split(r"[,;] | and | is near| are near", names):
            if (found := name.strip(" `").removeprefix("the ").lower()) and found not in heads:
                missing.append(name)
    assert len(rows) > 50 and not missing


def test_beside_the_loop_are_only_starts_of_something_else():
    for path in PACKAGE.glob("*.py"):
        assert path.stem == "train" or (path.stem in BESIDE_THE_LOOP and code_lines(path)[0] <= 10), path


def test_imports_point_one_way():
    wrong = []
    for path in FILES:
        home = path.relative_to(PACKAGE).with_suffix("").parts
        if len(home) == 1 and home[0] not in ARROWS or home[-1] in ("__init__", "__main__"):
            continue
        allowed = {home[0], *ARROWS[home[0]]}
        for target in imports(path):
            there = target.relative_to(PACKAGE).with_suffix("").parts[0]
            if there not in allowed:
                wrong.append(f"{'/'.join(home)} imports {there}")
    assert not wrong


def test_there_is_no_circle():
    """Tarjan's strongly connected sets, of which none has two files."""
    index: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    found = []

    def visit(node: Path) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in imports(node):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = [stack.pop()]
            while group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(str(path.relative_to(PACKAGE)) for path in group))

    sys.setrecursionlimit(10_000)
    for path in FILES:
        if path not in index:
            visit(path)
    assert not found


def has_demo(path: Path) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "demo" for node in tree(path).body)


LESSONS = PACKAGE / "lessons"


def in_the_chapters(path: Path) -> bool:
    """Whether a file is of a chapter's lessons, pictures aside; what all lessons share is no reader's burden."""
    return path.parent.parent == LESSONS and path.parent.name != "pictures"


@pytest.mark.parametrize("lesson", [path for path in FILES if in_the_chapters(path) and has_demo(path)], ids=str)
def test_a_lesson_is_read_in_two_minutes(lesson):
    """A lesson and what it imports of the lessons: 200 lines of code in three files at most."""
    seen, left = {lesson}, [lesson]
    while left:
        new = {path for path in imports(left.pop()) if in_the_chapters(path)} - seen
        seen |= new
        left += new
    lines = sum(code_lines(path)[0] for path in seen)
    assert lines <= 200 and len(seen) <= 3, (lines, sorted(map(str, seen)))


def test_a_demo_claims_six_things_at_most():
    claims = Counter(claim["module"] for claim in json.loads((ROOT / "docs" / "claims.json").read_text())["claims"])
    assert not {module: count for module, count in claims.items() if count > 6}


@pytest.mark.parametrize("path", sorted(LESSONS.rglob("*.py")), ids=str)
def test_what_is_measured_is_neither_written_down_nor_a_formula(path):
    """Of `rows.add(what, formula, predicted, measured)`, as far as the file shows it."""
    formulas = {
        alias.asname or alias.name
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minitrain.costs")
        for alias in node.names
    }
    for node in ast.walk(tree(path)):
        if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("add", "time")):
            continue
        published = any(each.arg == "how" and ast.unparse(each.value) == "'published'" for each in node.keywords)
        if published or len(node.args) < 4 or any(isinstance(each, ast.Starred) for each in node.args):
            continue
        measured = node.args[3]
        assert not isinstance(measured, ast.Constant), ast.unparse(node)
        called = measured.func if isinstance(measured, ast.Call) else None
        owner = called.value if isinstance(called, ast.Attribute) else called
        assert not (isinstance(owner, ast.Name) and owner.id in formulas), ast.unparse(node)


# Lines of each room when the list was last changed by hand. None may grow by more than a tenth unseen.
LINES = {
    "__init__": 16,
    "__main__": 8,
    "benchmarks": 1543,
    "checkpointing": 2415,
    "collectives": 642,
    "comm": 2284,
    "compare": 11,
    "composition": 2109,
    "context_parallel": 1592,
    "costs": 4321,
    "craft": 420,
    "data": 2011,
    "data_parallel": 972,
    "evaluate": 11,
    "export": 11,
    "first_hour": 11,
    "generate": 11,
    "inference": 284,
    "lessons": 15671,
    "matrix_product": 348,
    "mixture_of_experts": 2358,
    "models": 751,
    "optimizers": 1155,
    "parameter_server": 647,
    "pipeline_parallel": 2815,
    "plan": 11,
    "planning": 3030,
    "player": 728,
    "precision": 561,
    "prepare": 11,
    "ranks": 1566,
    "recommender": 1559,
    "recomputation": 1046,
    "resilience": 780,
    "roofline": 445,
    "sequence_parallel": 753,
    "tensor_parallel": 2054,
    "tour": 11,
    "train": 169,
    "trainer": 3333,
    "watch": 1724,
    "zero": 2706,
}


def test_no_room_grows_unseen():
    now = Counter(path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES for _ in lines_of(path))
    grown = {room: (count, LINES.get(room, 0)) for room, count in now.items() if count > 1.1 * LINES.get(room, 0) + 20}
    assert not grown, "shorten it, or change the list by hand"
    assert sum(now.values()) <= 63_000


@cache
def lines_of(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text("utf-8").splitlines())


def test_every_lesson_is_about_a_technique():
    """`python -m minitrain.zero.stage1` finds `minitrain/lessons/zero/stage1.py`, and each lesson has its technique."""
    with_demo = {path for path in FILES if path.parent.parent.name == "lessons" and has_demo(path)}
    started = {path for path in FILES if path.parent.parent == PACKAGE and "run(__spec__)" in path.read_text("utf-8")}
    assert {path.relative_to(PACKAGE / "lessons") for path in with_demo} == {p.relative_to(PACKAGE) for p in started}
