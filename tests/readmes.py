"""`python -m tests.readmes` writes each chapter's README.md: what to read first, second, third, and what `full/` is.

It is made of the listing of demos, the first line of each file, and the lines of code that the house's test counts.
"""

from __future__ import annotations

import ast
from pathlib import Path

from minitrain.lessons.listing import CHAPTERS, NUMBERS
from tests.test_house import PACKAGE, ROOT, code_lines, tree


def readme(chapter: str) -> str:
    """The text of a chapter's README.md."""
    folder = PACKAGE / chapter
    head, _, rest = (ast.get_docstring(tree(folder / "__init__.py")) or "").partition("\n\n")
    title, _, about = " ".join(head.split()).partition(": ")
    name = title.partition(", ")[2] or title
    notebooks = sorted((ROOT / "tutorials").glob(f"{NUMBERS.get(chapter, '-')}*_{chapter}.ipynb"))
    where = ", ".join(f"[{file.stem.partition('_')[0]}](../../tutorials/{file.name})" for file in notebooks)
    listed = CHAPTERS[chapter].split()
    others = sorted(file.stem for file in folder.glob("[a-z]*.py") if file.stem not in listed)
    rows = [f"{number}. {_row(folder / f'{stem}.py')}" for number, stem in enumerate(listed, 1)]
    rows += [f"- {_row(folder / f'{stem}.py')}" for stem in others]
    paragraphs = [
        f"# {name[0].upper()}{name[1:]}" + (f" (chapter {NUMBERS[chapter]})" if chapter in NUMBERS else ""),
        f"{about[0].upper()}{about[1:]}" + (f" Notebook{'s' * (len(notebooks) > 1)} {where}." if where else ""),
        "To be read in this order, one file at a time:",
        "\n".join(rows),
        f"`python -m minitrain.{chapter}.{listed[0]}` runs the first on real ranks, and shows what theory predicts "
        "next to what was measured.",
    ]
    full = sorted(file.stem for file in (folder / "full").glob("[a-z]*.py"))
    if full:
        of_all = sum(code_lines(folder / "full" / f"{stem}.py")[0] for stem in full)
        paragraphs.append(
            "`full/` has what a user runs: the same techniques for any model, checked and fast, "
            f"{of_all:,} lines of code in {len(full)} file{'s' * (len(full) > 1)}. Not for the first reading."
        )
    return "\n\n".join(paragraphs) + "\n"


def _row(file: Path) -> str:
    """A file's name, what it is about, and its lines of code."""
    first = (ast.get_docstring(tree(file)) or "").partition("\n\n")[0]
    lines, _ = code_lines(file)
    return f"[`{file.stem}`]({file.name}), {lines} lines. {' '.join(first.split())}"


def chapters() -> list[str]:
    """Those that have a README.md."""
    return [chapter for chapter in CHAPTERS if chapter != "trainer"]


if __name__ == "__main__":
    for each in chapters():
        (PACKAGE / each / "README.md").write_text(readme(each), encoding="utf-8")
