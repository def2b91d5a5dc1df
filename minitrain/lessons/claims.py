"""The claim: one formula of the text, next to the run's own measurement.

Theory predicts a number, an instrument measures it, and the claim says whether the two agree. The measured value never
comes from a formula: it is counted message by message, compared with a reference, or read off the virtual clock. Only
published figures from papers come without a run, and they say so.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDE = 120  # columns of a terminal in which a claim fits a row of a table
PICTURED = tuple(  # modules whose claims the picture of the table shows
    f"minitrain.{name}"
    for name in (
        "matrix_product.memory collectives.ring data_parallel.overlapped zero.stage1 recomputation.checkpoint "
        "precision.mixed tensor_parallel.gpt pipeline_parallel.executor mixture_of_experts.expert_parallel "
        "composition.step parameter_server.synchronous inference.kv_cache"
    ).split()
)


@dataclass(frozen=True)
class Claim:
    """A prediction and its measurement.

    Attributes:
        what: The claim in words: "bytes sent by each rank".
        formula: The formula as the text writes it: "2(n−1)/n · S".
        predicted: The formula's value for this run, from `minitrain.costs` or worked out in the demo.
        measured: The value that an instrument showed, never that of a formula; for a published figure, the paper's
            value.
        unit: "B", "messages", "virtual s", "1" for a plain number.
        source: Paper and section.
        how: "counted" (messages, bytes, storages), "compared" (with a reference), "virtual clock", or "published": a
            paper's figure, compared with our formula for it, without a run.
        relation: "=", "<=" or ">=": how `measured` relates to `predicted`.
        tolerance: Relative tolerance. 0 means exactly equal, the normal case for counts.
        absolute: Absolute tolerance, for where the expected value is 0.
        needs: The ranks that the claim needs, if there were fewer; it then neither holds nor fails.
        case: In a claim that several cases share (`fold`), the one that does not hold.
    """

    what: str
    formula: str
    predicted: float
    measured: float
    unit: str = "1"
    source: str = ""
    how: Literal["counted", "compared", "virtual clock", "published"] = "counted"
    relation: Literal["=", "<=", ">="] = "="
    tolerance: float = 0.0
    absolute: float = 0.0
    needs: int = 0
    case: str = ""

    @classmethod
    def needs_ranks(cls, ranks: int, what: str, formula: str, source: str = "") -> Claim:
        """A row for a claim that needs at least `ranks` ranks, where there are fewer."""
        return cls(what, formula, math.nan, math.nan, source=source, needs=ranks)

    @property
    def holds(self) -> bool | None:
        """Whether prediction and measurement agree; None where there are too few ranks to tell."""
        if self.needs:
            return None
        if math.isnan(self.predicted) or math.isnan(self.measured):
            return False  # every comparison with NaN is false, and a silent "holds" would be worse than none
        slack = max(self.tolerance * abs(self.predicted), self.absolute)
        if self.relation == "<=":
            return self.measured <= self.predicted + slack
        if self.relation == ">=":
            return self.measured >= self.predicted - slack
        return self.measured == self.predicted or abs(self.measured - self.predicted) <= slack


def fold(what: str, cases: Mapping[str, Claim]) -> Claim:
    """One claim for one fact that was seen in several cases, such as the same equality in each of 22 layouts.

    Args:
        what: The claim about all of them.
        cases: Name of a case -> its claim.

    Returns:
        The first case that does not hold, with its name. Where all hold, the first case, with the measured value that
        is farthest out among the cases that are predicted like it, and the formulas of all cases if they differ.
    """
    if failing := [name for name, claim in cases.items() if claim.holds is False]:
        return dataclasses.replace(cases[failing[0]], what=what, case=failing[0])
    first, *others = cases.values()
    alike = [first.measured, *(claim.measured for claim in others if claim.predicted == first.predicted)]
    # The source is the first case's, so that it does not depend on whose rounding is larger.
    formulas = "; ".join(dict.fromkeys(claim.formula for claim in cases.values()))
    farthest = min(alike) if first.relation == ">=" else max(alike)
    return dataclasses.replace(first, what=what, formula=formulas, measured=farthest)


@dataclass(frozen=True)
class Row:
    """One claim as all ranks saw it: rank 0's numbers, or those of the first rank on which it failed."""

    chapter: str
    module: str
    claim: Claim
    holds: bool | None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The row as plain values; NaN becomes null, since JSON has none."""
        values = dataclasses.asdict(self.claim)
        plain = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in values.items()}
        return {"chapter": self.chapter, "module": self.module, **plain, "holds": self.holds, "note": self.note}


def merge(module: str, by_rank: Sequence[Sequence[Claim]]) -> list[Row]:
    """Make one row of each claim from every rank's list of claims.

    Raises:
        RuntimeError: The ranks made different lists of claims.
    """
    chapter = module.removeprefix("minitrain.").split(".")[0]
    names = [[claim.what for claim in claims] for claims in by_rank]
    if any(other != names[0] for other in names):
        raise RuntimeError(
            f"{module}: the ranks made different claims: {names}; each rank makes all of them in one order"
        )
    rows = []
    for versions in zip(*by_rank, strict=True):
        failed = [rank for rank, claim in enumerate(versions) if claim.holds is False]
        shown = versions[failed[0]] if failed else versions[0]
        note = f"needs {shown.needs} ranks" if shown.needs else ""
        if failed and len(versions) > 1:
            note = "fails on rank " + ",".join(map(str, failed))
        if shown.case:
            note = f"{note}: {shown.case}" if note else shown.case
        rows.append(Row(chapter, module, shown, False if failed else shown.holds, note))
    return rows


def number(value: float) -> str:
    """A number for a reader: counts whole and grouped, small and large fractions with six digits."""
    if math.isnan(value):
        return "–"
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.6g}"


def with_unit(value: float, unit: str) -> str:
    """`number` followed by its unit, except for plain numbers."""
    if unit == "1" or math.isnan(value):
        return number(value)
    return f"{number(value)} {'message' if value == 1 and unit == 'messages' else unit}"


def verdict(row: Row) -> str:
    """The last column of the table."""
    word = {True: "yes", False: "NO", None: "–"}[row.holds]
    return f"{word} ({row.note})" if row.note else word


def expected(claim: Claim) -> str:
    """The predicted value with its relation, and the tolerance where it is not exact."""
    sign = {"=": "", "<=": "≤ ", ">=": "≥ "}[claim.relation]
    text = sign + with_unit(claim.predicted, claim.unit)
    if claim.absolute and not claim.needs:
        text += f" ± {claim.absolute:.1e}"
    elif claim.tolerance and not claim.needs:
        text += f" ± {100 * claim.tolerance:g} %"
    return text


def first_of_each(rows: Sequence[Row]) -> list[Row]:
    """The first claim of each module, and all claims that do not hold."""
    first = {row.module: row for row in reversed(rows)}
    return [row for row in rows if first[row.module] is row or row.holds is False]


def print_rows(rows: Iterable[Row], console: Console | None = None, chapters: bool = False) -> None:
    """Print the table of claims, with chapter and file if asked.

    In a terminal of at least `WIDE` columns it is drawn; in a narrower one each claim has a line, and its numbers the
    next. Elsewhere columns are aligned with spaces.
    """
    console = console or Console()
    columns = ["chapter"] * chapters + ["what", "formula", "predicted", "measured", "how", "holds"]
    cells = [
        [row.module.removeprefix("minitrain.")] * chapters
        + [row.claim.what, row.claim.formula, expected(row.claim), with_unit(row.claim.measured, row.claim.unit)]
        + ["–" if row.claim.needs else row.claim.how, verdict(row)]
        for row in rows
    ]
    if not console.is_terminal:
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        for line in [columns, *cells]:
            row = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print(row.rstrip(), file=console.file, flush=True)
        return
    if console.width < WIDE:
        for *chapter, what, formula, predicted, measured, how, holds in cells:
            word, _, note = holds.partition(" ")
            style = "bold red" if word == "NO" else ""
            console.print(Text(f"{ {'yes': '✓', 'NO': '✗'}.get(word, word) } {': '.join([*chapter, what])}", style))
            numbers = f"{formula} · predicted {predicted} · measured {measured} · {how} {note}".rstrip()
            console.print(Padding(Text(numbers, style or "dim"), (0, 0, 0, 4)))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in ("predicted", "measured") else "left", overflow="fold")
    for line in cells:
        table.add_row(*line, style="bold red" if line[-1].startswith("NO") else None)
    console.print(table)


def picture_of(rows: Sequence[Row]) -> str:
    """The table as a terminal shows it, one claim of each module in `PICTURED`, as an SVG that loads nothing."""
    console = Console(record=True, file=io.StringIO(), force_terminal=True, width=150)
    print_rows([row for row in first_of_each(rows) if row.module in PICTURED], console, chapters=True)
    picture = console.export_svg(title="make tour", unique_id="claims")
    # rich names a font on a server; the reader's own monospaced font does as well.
    return re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)


def write_json(path: str | Path, rows: Sequence[Row], **about: Any) -> None:
    """Write the claims, and facts about the run that made them, as JSON."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    document = {**about, "claims": [row.to_json() for row in rows]}
    Path(path).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
