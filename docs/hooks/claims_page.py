"""The page of all claims, made from the claims.json that `make claims` writes."""

from __future__ import annotations

import math
import re
from html import escape
from typing import Any

import chapters

TITLES = ("Claim", "Formula", "Predicted", "Measured", "How", "Holds")

# The rows of the landing page: one of each kind, as (module, beginning of what is claimed).
TELLING = (
    ("minitrain.matrix_product.memory", "bytes of optimizer states"),
    ("minitrain.collectives.ring", "ring all-reduce of up to 1,048,577 float32: bytes"),
    ("minitrain.collectives.hierarchical", "flat ring all-reduce"),
    ("minitrain.collectives.hierarchical", "hierarchical all-reduce on"),
    ("minitrain.data_parallel.naive", "weights that differ after 5 steps"),
    ("minitrain.data_parallel.overlapped", "time of a step, buckets of two layers, during"),
    ("minitrain.parameter_server.synchronous", "bytes through the busiest server's link in a step"),
    ("minitrain.zero.stage3", "bytes of parameters, gradients and optimizer states, stage 3"),
    ("minitrain.recomputation.checkpoint", "operations done again: the blocks' forward"),
    ("minitrain.tensor_parallel.parallelize", "all-reduces: two per layer"),
    ("minitrain.pipeline_parallel.executor", "bubble of interleaved over the time of a step, v = 2"),
    ("minitrain.mixture_of_experts.expert_parallel", "distance of outputs and all gradients from one device"),
    ("minitrain.composition.step", "losses, norms and weights in 2 steps"),
)

NONE = "*`docs/claims.json` is not there yet: `make claims` writes it.*"


def to_markdown(record: dict[str, Any]) -> str:
    """A section for each chapter, in reading order: a table of its key claims, and the others folded below it."""
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
            parts += [f"## {title} {{ #{name} }}", section(rows)]
    return "\n\n".join(parts)


def section(claims: list[dict[str, Any]]) -> str:
    """The key claims as a table, and the others in a second one, folded; where a module has no key claim, all count."""
    # Records from before claims had `key` lack it.
    marked = {claim["module"] for claim in claims if claim.get("key")}
    first, rest = [], []
    for claim in claims:
        shown = claim.get("key") or claim["holds"] is False or claim["module"] not in marked
        (first if shown else rest).append(claim)
    if not rest:
        return table(first)
    summary = f"{len(rest)} more claim{'s' * (len(rest) > 1)}"
    return f'{table(first)}\n\n<details class="claims-more"><summary>{summary}</summary>\n{table(rest)}\n</details>'


def _summary(record: dict[str, Any]) -> str:
    found = record["claims"]
    held = sum(claim["holds"] is True for claim in found)
    waiting = sum(claim["holds"] is None for claim in found)
    text = f"{len(found)} claims, measured on {record['ranks']} ranks with torch {record['torch']} "
    text += f"and Python {record['python']}: {held} hold"
    return text + (f", {waiting} need more ranks than there were." if waiting else ".")


def sample(record: dict[str, Any]) -> str:
    """A table of the telling claims, as far as the record has them."""
    found = [
        claim
        for module, start in TELLING
        for claim in record["claims"]
        if claim["holds"] and claim["module"] == module and claim["what"].startswith(start)
    ]
    return table(found) if found else NONE


def failed(record: dict[str, Any]) -> list[str]:
    """What is recorded as not holding; such a record is not to be published."""
    return [f"{claim['module']}: {claim['what']}" for claim in record["claims"] if claim["holds"] is False]


def table(claims: list[dict[str, Any]]) -> str:
    """Claims as a table, with a line for each module."""
    rows = []
    module = ""
    for claim in claims:
        if claim["module"] != module:
            module = claim["module"]
            rows.append(f'<tr class="claim-module"><th colspan="6"><code>{escape(module)}</code></th></tr>')
        rows.append(_row(claim))
    return _table(rows)


def stored_table(markdown: str) -> str:
    """The table of claims that a notebook has stored (`minitrain.lessons.notebook.table`); "" if it is none."""
    lines = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in markdown.strip().split("\n")]
    cells = [[re.sub(r"\\([|*])", r"\1", cell).strip() for cell in line] for line in lines]
    if cells[0] != ["what", "formula", "predicted", "measured", "how", "holds"]:
        return ""
    rows = []
    for what, formula, predicted, measured, how, holds in cells[2:]:
        kind = "yes" if holds == "yes" else "no" if holds.lower().startswith("no") else "open"
        values = (_singular(escape(value)) for value in (predicted, measured))
        rows.append(_cells(kind, (escape(what), symbols(formula), *values, escape(how), escape(holds))))
    return _table(rows)


def _table(rows: list[str]) -> str:
    head = "".join(f"<th>{title}</th>" for title in TITLES)
    return (
        f'<div class="claims"><table><thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _row(claim: dict[str, Any]) -> str:
    what = escape(claim["what"])
    if claim.get("source"):
        what += f'<span class="claim-source">{escape(claim["source"])}</span>'
    relation = {"<=": "≤ ", ">=": "≥ "}.get(claim.get("relation", "="), "")
    unit = "" if claim["unit"] == "1" else claim["unit"]
    # Whether it holds is said in words: colour and sign alone do not reach everyone.
    holds = {True: "yes", False: "no", None: claim.get("note") or "needs more ranks"}[claim["holds"]]
    cells = (
        what,
        symbols(claim["formula"]),
        relation + quantity(claim.get("predicted"), unit),
        quantity(claim.get("measured"), unit),
        escape(claim["how"]),
        escape(holds),
    )
    return _cells({True: "yes", False: "no", None: "open"}[claim["holds"]], cells)


def _cells(kind: str, cells: tuple[str, ...]) -> str:
    """A row; on a narrow page it becomes a card (see extra.css), hence the labels."""
    inner = "".join(f'<td data-label="{title}">{cell}</td>' for title, cell in zip(TITLES, cells, strict=True))
    return f'<tr class="claim-{kind}">{inner}</tr>'


def symbols(formula: str) -> str:
    """A formula as HTML: the index of a symbol stands lower, an exponent higher."""
    text = re.sub(r"(?<![^\W_]{2})([^\W\d_])_(\w+)", r"\1<sub>\2</sub>", escape(formula))
    text = re.sub(r"\^(\w+|\([^()]*\))", r"<sup>\1</sup>", text)
    return text.replace("log2 ", "log<sub>2</sub>&nbsp;")


def _singular(text: str) -> str:
    return re.sub(r"^1(&nbsp;|\s)(\w{3,})s$", r"1\1\2", text)


def quantity(value: float | None, unit: str) -> str:
    """A number with its unit: whole numbers in groups of three digits, others with six significant digits."""
    if value is None or not math.isfinite(value):
        return "–"
    number = f"{int(value):,}".replace(",", "\u2009") if value == int(value) else f"{value:.6g}"
    return _singular(f"{number}&nbsp;{escape(unit).replace(' ', '&nbsp;')}") if unit else number
