"""Lists what is left of the habits that make our English hard to read.

    python -m tests.english            how often each habit occurs, by file
    python -m tests.english PATTERN    each of them with its words, in the files whose path contains PATTERN

It reads prose in notebooks and pages, docstrings, comments, and the texts of claims, errors and help. It only counts: a
sentence that is better with the habit may keep it.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
COUNTED = "token|layer|step|rank|parameter|element|micro-batch|GPU|expert|block|message|number|chapter|row|sequence"
HABITS = {
    "stands": r"\bst(and|ands|ood) (in|beside|behind|under|before|there|once|here|next|above|below|at|also)\b",
    "unlike, as a noun": r"\bunlike (those|that|one device|the|in|what)\b|\bunlike,",
    "a, for per": rf"\b(bytes?|bits?|FLOPs|operations|numbers?|seconds|messages?|twice|once|times) an? ({COUNTED})\b",
    "of above, but one": r"\bof (above|before)\b|\blast \w+ but (one|two)\b",
    "beside": r"\bbeside\b",
    "behind, of order": r"\bbehind (it|them|this|that|each|the last|the first|which)\b",
    "is there": r"\b(is|are|was|were) there(?=[.,;:)]| as| when| until| for)",
    "nobody, whoever": r"\b(nobody|somebody|whoever)\b",
    "what, as a subject": r"(?:^|[.;:] )What \w+ (?!is|are|does|did|was|has)\w+s\b",
    "dear": r"\bdear(er|est)?\b",
    "that is none": r"\b(that|which|what) (is|are) none\b",
    "cannot be": r"\bcannot be[.;]|\bwhat was asked for\b|\bis to be had\b|\bto be had\b",
    "summand, whole": r"\bsummands?\b|\bin one piece\b",
    "German order": r"\b(Asked is|Who has|Who comes|There it is)\b",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """(number of a line or cell, text) of all prose in a file."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(content)["cells"]):
            if cell["cell_type"] == "markdown":
                yield number, "".join(cell["source"])
    elif path.suffix == ".md":
        yield from enumerate(content.split("\n"), 1)
    else:
        for token in tokenize.generate_tokens(io.StringIO(content).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield node.lineno, node.value


def files() -> list[Path]:
    """Everything that is read, tests left out."""
    docs = [path for path in (ROOT / "docs").rglob("*.md")]
    return sorted(
        [ROOT / "README.md", *docs, *(ROOT / "tutorials").glob("*.ipynb"), *(ROOT / "minitrain").rglob("*.py")]
    )


def found(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line or cell, habit, the words around it)."""
    for number, text in texts(path):
        flat = " ".join(text.split())
        for habit, pattern in HABITS.items():
            for match in re.finditer(pattern, flat):
                yield number, habit, flat[max(0, match.start() - 50) : match.end() + 40]


def main(pattern: str = "") -> None:
    """Show counts, or with a pattern the sentences."""
    table, total = Table("file", *(["place", "habit", "words"] if pattern else ["left", "most of all"])), Counter[str]()
    for path in files():
        name = str(path.relative_to(ROOT))
        habits = list(found(path))
        total.update(habit for _, habit, _ in habits)
        if pattern and pattern in name:
            for number, habit, words in habits:
                table.add_row(name, str(number), habit, words)
        elif habits and not pattern:
            often = Counter(habit for _, habit, _ in habits).most_common(2)
            table.add_row(name, str(len(habits)), ", ".join(f"{habit} {count}" for habit, count in often))
    Console().print(table)
    print(f"{total.total()} in all:", ", ".join(f"{habit} {count}" for habit, count in total.most_common()))


if __name__ == "__main__":
    main(*sys.argv[1:2])
