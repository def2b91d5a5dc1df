"""What texts name exists: modules, files, functions and chapters, in docstrings, comments, pages and READMEs."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from minitrain.lessons.listing import NUMBERS, demos

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = sorted((ROOT / "minitrain").rglob("*.py")) + sorted((ROOT / "tests").rglob("*.py"))
DOTTED = re.compile(r"(?<![\w./-])(?:minitrain|tests)(?:\.(?!sbatch)\w+)+")
FILE = re.compile(r"(?<![\w./*<-])(?:minitrain/|tests/|docs/|tutorials/|\w+/)+\w+\.(?:py|md|ipynb|toml)\b")
CHAPTERS = re.compile(r"\b[Cc]hapters? (\d\d[a-c]?(?:(?:,| and|, and| or| to|–) ?\d\d[a-c]?\b)*)")
OURS = ("minitrain", "tests", "docs", "tutorials", *(path.name for path in (ROOT / "minitrain").iterdir()))


def words(path: Path) -> str:
    """The text of a page, or what a file of code says besides its code: docstrings and comments."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return text
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    comments = re.findall(r"(?:^|\s)#(.*)$", text, re.MULTILINE)
    return "\n".join([*docstrings, *comments])


@cache
def defined(path: Path) -> frozenset[str]:
    """What a file defines at its top, and in its classes; of a package's `__init__` also what it passes on."""
    found, waiting = set(), [(ast.parse(path.read_text("utf-8")), False)]
    while waiting:
        node, local = waiting.pop()  # local: within a function, where only attributes of `self` last
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not local:
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not local:
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and path.name == "__init__.py":
            found.add(node.value)
        local = local or isinstance(node, ast.FunctionDef | ast.Lambda)
        waiting += [(child, local) for child in ast.iter_child_nodes(node)]
    return frozenset(found)


def exists(name: str) -> bool:
    """Whether there is such a module, or such a name in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:count])
        file = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
        if base.is_dir() and not file.is_file():
            return count == len(parts)
        if file.is_file():
            return all(part in defined(file) for part in parts[count:][:2])
    return False


def missing(path: Path) -> Iterator[str]:
    text = words(path)
    for name in set(DOTTED.findall(text)):
        if not exists(name):
            yield name
    for name in set(FILE.findall(text)):
        places = (ROOT, ROOT / "minitrain", ROOT / "tests", path.parent)
        if name.split("/")[0] in OURS and not any((place / name).is_file() for place in places):
            yield name
    for numbers in set(CHAPTERS.findall(text)):
        for number in set(re.findall(r"\d\d", numbers)) - set(NUMBERS.values()):
            yield f"chapter {number}"


@pytest.mark.parametrize("paths", [PAGES, CODE], ids=["pages", "code"])
def test_what_is_named_exists(paths):
    found = {str(path.relative_to(ROOT)): sorted(names) for path in paths if (names := list(missing(path)))}
    assert not found, "\n".join(f"{path}: {', '.join(names)}" for path, names in found.items())


def test_what_is_counted_is_so_many():
    counts = {
        "notebooks": len(list((ROOT / "tutorials").glob("[0-9]*.ipynb"))),
        "chapters": len(NUMBERS),
        "demos": len(demos()),
    }
    found = [
        (path.name, int(number.replace(",", "")), what)
        for path in (*PAGES, ROOT / "Makefile")
        for number, what in re.findall(r"\b(\d[\d,]*) (notebooks|chapters|demos)\b", path.read_text("utf-8"))
    ]
    assert len(found) >= 3
    assert not [(page, number, what) for page, number, what in found if number != counts[what]]


def test_letters_of_the_glossary_are_those_of_the_claims():
    table = (ROOT / "docs" / "glossary.md").read_text("utf-8").split("| Letter |")[1].split("\n\n")[0]
    cells = [row.split("|")[1] for row in table.split("\n")[2:]]
    names = {r"\alpha": "α", r"\beta": "β", r"\Psi": "Ψ", "c_r": "cᵣ"}
    letters = [names.get(each, each) for cell in cells for each in re.findall(r"\$(.+?)\$", cell)]
    assert len(letters) == len(set(letters)) > 25
    claims = json.loads((ROOT / "docs" / "claims.json").read_text("utf-8"))["claims"]
    words = {each for claim in claims for each in re.findall(r"[^\W\d_]+", claim["formula"])}
    # A letter stands alone, or next to others as in bsh.
    used = {each for word in words if len(word) == 1 or word in ("bsh", "cᵣ") for each in (word, *word)}
    assert [each for each in letters if each not in used and each != "N_d"] == []  # ZeRO's paper alone writes N_d
