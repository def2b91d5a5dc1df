"""The pages of claims, one for each chapter, made from the claims.json that `make claims` writes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import chapters
import formulas
import papers

TOGETHER = 10  # signs of a number and its unit that stay in one line
WORDS = 7  # of a sentence that its anchor has at least
TITLES = ("Claim", "Formula", "Predicted", "Measured", "How", "Holds")

# The rows of the landing page: one of each kind, as (module, beginning of what is claimed).
TELLING = (
    ("minitrain.collectives.ring", "ring all-reduce of up to 1,048,577 float32: bytes"),
    ("minitrain.zero.stage3", "small form: bytes of parameters, gradients and optimizer states"),
    ("minitrain.composition.step", "losses, norms and weights in 2 steps"),
)

NONE = "*`docs/claims.json` is not there yet: `make claims` writes it.*"


@dataclass(frozen=True)
class Sources:
    """Where the claims of the site come from, for links.

    Attributes:
        papers: The table of papers.
        about: Module -> Markdown that goes below its heading: what it is, and where it is explained.
        costs: Module and sentence of a claim -> the functions that its prediction comes from.
    """

    papers: list[papers.Paper] = field(default_factory=list)
    about: Mapping[str, str] = field(default_factory=dict)
    costs: Mapping[tuple[str, str], list[str]] = field(default_factory=dict)


NO_SOURCES = Sources()


def chapters_of(record: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The claims of each chapter that has some, in reading order."""
    found: dict[str, list[dict[str, Any]]] = {chapter.name: [] for chapter in chapters.CHAPTERS}
    for claim in record["claims"]:
        found.setdefault(claim["chapter"], []).append(claim)
    return {name: claims for name, claims in found.items() if claims}


def title(chapter: str) -> str:
    """A chapter's name in the navigation, with its number if it has one: "04 ZeRO"."""
    known = chapters.BY_NAME.get(chapter)
    return f"{known.number} {known.title}" if known else chapter.replace("_", " ").capitalize()


def overview(record: dict[str, Any]) -> str:
    """A table of the chapters that links to their pages; each row has the chapter's name as its anchor."""
    if not record["claims"]:
        return NONE
    lines = ["| Chapter | Demos | Claims | Hold |", "| --- | ---: | ---: | --- |"]
    for name, claims in chapters_of(record).items():
        modules = {claim["module"] for claim in claims}
        link = f"[{title(name)}]({name}.md){{ #{name} }}"
        lines.append(f"| {link} | {len(modules)} | {len(claims)} | {_held(claims)} |")
    return f"{_summary(record)}\n\n" + "\n".join(lines)


def _held(claims: list[dict[str, Any]]) -> str:
    held = sum(claim["holds"] is True for claim in claims)
    return "all" if held == len(claims) else f"{held} of {len(claims)}"


def page(chapter: str, claims: list[dict[str, Any]], sources: Sources = NO_SOURCES) -> str:
    """The page of one chapter: for each demo its claims as a table."""
    modules = list(dict.fromkeys(claim["module"] for claim in claims))
    names = {module: module.rpartition(".")[2] for module in modules}
    name = chapters.BY_NAME[chapter].title if chapter in chapters.BY_NAME else title(chapter)
    held = "All hold." if _held(claims) == "all" else f"{_held(claims)} hold."
    demos = f"{len(modules)} demo{'s' * (len(modules) > 1)}"
    parts = [
        f"---\ntitle: {title(chapter)}\nhide: [toc]\n---\n\n# Claims: {name}",
        f"{len(claims)} claims of {demos}. {held} [What a claim is](index.md)",
        " · ".join(f"[`{name}`](#{name})" for name in names.values()) + "\n{ .claims-demos }",
        f'<div class="claims-filter" data-claims="{len(claims)}"></div>\n'
        '<script type="module" src="../../javascripts/claims.js"></script>',
    ]
    for module in modules:
        rows = [claim for claim in claims if claim["module"] == module]
        about = f"{sources.about[module]}\n{{ .claims-about }}\n\n" if module in sources.about else ""
        head = f"## `{names[module]}` {{ #{names[module]} }}\n\n{about}"
        parts.append(f'<div class="claims-demo" markdown>\n\n{head}{section(rows, sources)}\n\n</div>')
    return "\n\n".join(parts) + "\n"


def section(claims: list[dict[str, Any]], sources: Sources = NO_SOURCES) -> str:
    """A demo's claims as a table."""
    ids = anchors(claims)
    return _table([_row(claim, sources, ids[claim["what"]]) for claim in claims])


def anchors(claims: list[dict[str, Any]]) -> dict[str, str]:
    """The anchor of each claim of a module, by its sentence: as many of its words as tell it from those before it."""
    found: dict[str, str] = {}
    for claim in claims:
        words = re.findall(r"[a-z0-9]+", claim["what"].lower().replace(",", ""))
        name = claim["module"].rpartition(".")[2]
        used = set(found.values())
        some = ("-".join([name, *words[:count]]) for count in range(WORDS, len(words) + 1))
        more = (f"{'-'.join([name, *words])}-{number}" for number in itertools.count(2))
        short = [] if len(words) >= WORDS else ["-".join([name, *words])]
        found[claim["what"]] = next(each for each in itertools.chain(short, some, more) if each not in used)
    return found


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
        # As text, which breaks in the narrow column of a notebook's page.
        rows.append(_cells(kind, (escape(what), symbols(formula), *values, escape(how), escape(holds))))
    return _table(rows)


def _table(rows: list[str]) -> str:
    head = "".join(f"<th>{title}</th>" for title in TITLES)
    return (
        f'<div class="claims"><table><thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _row(claim: dict[str, Any], sources: Sources = NO_SOURCES, anchor: str = "") -> str:
    what = escape(claim["what"])
    if anchor:
        what += (
            f'<a class="claim-anchor" href="#{anchor}" title="Link to this claim" aria-label="Link to this claim">¶</a>'
        )
    if claim.get("source"):
        what += f'<span class="claim-source">{papers.linked(claim["source"], sources.papers)}</span>'
    formula = mathematics(claim["formula"])
    if functions := sources.costs.get((claim["module"], claim["what"])):
        formula += f'<span class="claim-code">{", ".join(_function(name) for name in functions)}</span>'
    relation = {"<=": "≤ ", ">=": "≥ "}.get(claim.get("relation", "="), "")
    unit = "" if claim["unit"] == "1" else claim["unit"]
    # Whether it holds is said in words: color and sign alone do not reach everyone.
    holds = {True: "yes", False: "no", None: claim.get("note") or "needs more ranks"}[claim["holds"]]
    cells = (
        what,
        formula,
        relation + quantity(claim.get("predicted"), unit),
        quantity(claim.get("measured"), unit),
        escape(claim["how"]),
        escape(holds),
    )
    about = f' id="{anchor}" data-formula="{escape(claim["formula"])}"' if anchor else ""
    return _cells({True: "yes", False: "no", None: "open"}[claim["holds"]], cells, about)


def _function(name: str) -> str:
    """A function of costs as a link to the reference, from a page of claims: "zero.volume"."""
    module, _, function = name.rpartition(".")
    room = module.partition(".")[2].replace(".", "/")
    return f'<a href="../../reference/{room}/#{name}"><code>{module.rpartition(".")[2]}.<wbr>{function}</code></a>'


def _cells(kind: str, cells: tuple[str, ...], about: str = "") -> str:
    """A row; on a narrow page it becomes a card (see extra.css), hence the labels."""
    inner = "".join(f'<td data-label="{title}">{cell}</td>' for title, cell in zip(TITLES, cells, strict=True))
    return f'<tr class="claim-{kind}"{about}>{inner}</tr>'


def mathematics(formula: str) -> str:
    """A formula as MathML; where it is not understood, as text."""
    try:
        return formulas.to_html(formula)
    except ValueError:
        return symbols(formula)


def symbols(formula: str) -> str:
    """A formula as text: the index of a symbol stands lower, an exponent higher."""
    text = re.sub(r"(?<![^\W_]{2})([^\W\d_])_(\w+)", r"\1<sub>\2</sub>", escape(formula))
    text = re.sub(r"\^(\w+|\([^()]*\))", r"<sup>\1</sup>", text)
    return text.replace("log2 ", "log<sub>2</sub>&nbsp;")


def _singular(text: str) -> str:
    return re.sub(r"^1(&nbsp;|\s)(\w{3,})s$", r"1\1\2", text)


def quantity(value: float | None, unit: str) -> str:
    """A number with its unit: whole numbers in groups of three digits, others with six significant digits."""
    if value is None or not math.isfinite(value):
        return "–"
    number = f"{int(value):,}".replace(",", "\u202f") if value == int(value) else f"{value:.6g}"
    between = "&nbsp;" if len(number + unit) <= TOGETHER else " "
    return _singular(f"{number}{between}{escape(unit).replace(' ', '&nbsp;')}") if unit else number
