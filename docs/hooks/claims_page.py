"""The page of all claims, made from the claims.json that `make claims` writes."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import chapters

NONE = "*`docs/claims.json` is not there yet: `make claims` writes it.*"


def to_markdown(record: dict[str, Any]) -> str:
    """One section and one table a chapter, in reading order."""
    if not record["claims"]:
        return NONE
    found = record["claims"]
    names = [c.name for c in chapters.CHAPTERS]
    others = dict.fromkeys(claim["chapter"] for claim in found if claim["chapter"] not in names)
    parts = [_summary(record)]
    for name in [*names, *others]:
        rows = [claim for claim in found if claim["chapter"] == name]
        if rows:
            title = chapters.BY_NAME[name].title if name in chapters.BY_NAME else name.replace("_", " ").capitalize()
            parts += [f"## {title} {{ #{name} }}", table(rows)]
    return "\n\n".join(parts)


def _summary(record: dict[str, Any]) -> str:
    found = record["claims"]
    held = sum(claim["holds"] is True for claim in found)
    waiting = sum(claim["holds"] is None for claim in found)
    text = f"{len(found)} claims, measured on {record['ranks']} ranks with torch {record['torch']} "
    text += f"and Python {record['python']}: {held} hold"
    return text + (f", {waiting} need more ranks than there were." if waiting else ".")


def sample(record: dict[str, Any], most: int = 4) -> str:
    """A table of a few claims that hold, from as many modules."""
    first: dict[str, dict[str, Any]] = {}
    for claim in record["claims"]:
        if claim["holds"]:
            first.setdefault(claim["module"], claim)
    return table(list(first.values())[:most]) if first else NONE


def failed(record: dict[str, Any]) -> list[str]:
    """What is recorded as not holding; such a record is not to be published."""
    return [f"{claim['module']}: {claim['what']}" for claim in record["claims"] if claim["holds"] is False]


def table(claims: list[dict[str, Any]]) -> str:
    """Claims as a table; on a narrow page each row becomes a card (see extra.css), hence the labels."""
    titles = ("Claim", "Formula", "Predicted", "Measured", "How", "Holds")
    head = "".join(f"<th>{title}</th>" for title in titles)
    rows = []
    module = ""
    for claim in claims:
        if claim["module"] != module:
            module = claim["module"]
            rows.append(f'<tr class="claim-module"><th colspan="6"><code>{escape(module)}</code></th></tr>')
        rows.append(_row(claim, titles))
    return (
        f'<div class="claims"><table><thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _row(claim: dict[str, Any], titles: tuple[str, ...]) -> str:
    what = escape(claim["what"])
    if claim.get("source"):
        what += f'<span class="claim-source">{escape(claim["source"])}</span>'
    relation = {"<=": "≤ ", ">=": "≥ "}.get(claim.get("relation", "="), "")
    unit = "" if claim["unit"] == "1" else claim["unit"]
    # Whether it holds is said in words: colour and sign alone do not reach everyone.
    holds = {True: "yes", False: "no", None: claim.get("note") or "needs more ranks"}[claim["holds"]]
    cells = (
        what,
        escape(claim["formula"]),
        relation + quantity(claim.get("predicted"), unit),
        quantity(claim.get("measured"), unit),
        escape(claim["how"]),
        escape(holds),
    )
    kind = {True: "yes", False: "no", None: "open"}[claim["holds"]]
    return f'<tr class="claim-{kind}">' + "".join(
        f'<td data-label="{title}">{cell}</td>' for title, cell in zip(titles, cells, strict=True)
    ) + "</tr>"  # fmt: skip


def quantity(value: float | None, unit: str) -> str:
    """A number with its unit: whole numbers in groups of three digits, others with six significant digits."""
    if value is None or not math.isfinite(value):
        return "–"
    number = f"{int(value):,}".replace(",", "\u2009") if value == int(value) else f"{value:.6g}"
    return f"{number}&nbsp;{escape(unit)}" if unit else number
