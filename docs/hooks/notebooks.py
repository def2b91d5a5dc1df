"""An executed notebook as a Markdown page: cells, stored outputs, pictures.

What a notebook may say to this page:

- alt text of a picture: `alt` in the output's metadata (IPython's `Image(..., alt=...)` and
  `display(figure, metadata={"image/png": {"alt": ...}})` write it there), or `alt` in the cell's metadata (one text, or
  a list with one for each picture of the cell);
- tags of a cell: `remove-cell`, `remove-input`, `remove-output` leave it or a part of it out, `hide-input` and
  `hide-output` fold it, `solution` folds the whole cell.
"""

from __future__ import annotations

import base64
import re
import struct
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import claims_page

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_GROUND = re.compile(r'(<g id="(?:figure|axes)_\d+">\s*<g id="patch_\d+">\s*<path d="[^"]*" )style="fill: #ffffff"')
_PICTURES = {"image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpg"}
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_WHOLE_FILE = re.compile(r"^# (?P<file>minitrain/\S+\.py), without its head", re.MULTILINE)
_ITEM = re.compile(r" *([-*+]|\d+\.) +\S")


@dataclass
class Page:
    """What one notebook becomes."""

    title: str = ""
    markdown: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # pictures, by name beside the page
    problems: list[str] = field(default_factory=list)


def to_page(notebook: dict[str, Any], name: str, header: str = "", below: Mapping[str, str] | None = None) -> Page:
    """Turn a notebook (version 4, as read from its JSON) into a page.

    Args:
        notebook: the notebook.
        name: the page's name; pictures go to the folder `<name>_files` beside it.
        header: Markdown that is put below the title.
        below: What is put below the cell that has a file's code, such as "minitrain/zero/stage1.py".
    """
    page = Page()
    parts: list[str] = []
    for number, cell in enumerate(notebook["cells"]):
        tags = set(cell["metadata"].get("tags", ()))
        text = _joined(cell["source"])
        if "remove-cell" in tags or not text.strip():
            continue
        if cell["cell_type"] == "code":
            part = _code_cell(cell, text, tags, f"{name}_files/{number}", page)
        elif cell["cell_type"] == "markdown":
            part = for_python_markdown(text)
            if cell.get("attachments"):
                page.problems.append(f"the cell {_first_line(cell)!r} has an attachment: use a picture file")
        else:
            continue
        parts.append(_folded("Solution", part) if "solution" in tags else part)
        if (whole := _WHOLE_FILE.search(text)) and below and whole["file"] in below:
            parts.append(below[whole["file"]])
    title = re.match(r"# +(?P<text>.+?) *#*(\n|$)", parts[0]) if parts else None
    if title:
        page.title = title["text"].replace("`", "")
        parts[0] = f"# {title['text']}\n\n{header}\n\n{parts[0][title.end() :]}"
    else:
        page.problems.append("the first cell does not start with a title: '# '")
    page.markdown = "\n\n".join(parts) + "\n"
    return page


def _code_cell(cell: dict[str, Any], source: str, tags: set[str], stem: str, page: Page) -> str:
    parts = []
    if "remove-input" not in tags:
        shown = _fence(source, "python nb-in")
        parts.append(_folded("Code", shown, "note nb-drawn") if "hide-input" in tags else shown)
    outputs = [] if "remove-output" in tags else _outputs(cell, stem, page)
    if outputs and "hide-output" in tags:
        parts.append(_folded("Output", "\n\n".join(outputs)))
    elif outputs:
        parts.append('<div class="nb-outputs" markdown>\n\n' + "\n\n".join(outputs) + "\n\n</div>")
    return "\n\n".join(parts)


def _outputs(cell: dict[str, Any], stem: str, page: Page) -> list[str]:
    """The outputs of a cell as blocks of Markdown; pieces of one stream that follow each other are one block."""
    shown: list[tuple[str, str]] = []  # (kind, text)
    pictures = 0
    for output in cell.get("outputs", ()):
        if output["output_type"] == "stream":
            kind, text = output["name"], _joined(output["text"])
            before = shown.pop()[1] if shown and shown[-1][0] == kind else ""
            shown.append((kind, before + text))
        elif output["output_type"] == "error":
            message = f"{output['ename']}: {output['evalue']}"
            shown.append(("error", message))
            trace = _plain("\n".join(output.get("traceback", ())))
            if len(trace.splitlines()) > 1 and trace.strip() != message.strip():  # an error may be its own traceback
                shown.append(("traceback", trace))
        else:
            bundle = {kind: _joined(data) for kind, data in output["data"].items() if isinstance(data, str | list)}
            if kind := next((kind for kind in _PICTURES if kind in bundle), ""):
                alt = _alt_text(cell, output, kind, pictures)
                pictures += 1
                if not alt:
                    page.problems.append(f"picture {pictures} of the cell {_first_line(cell)!r} has no alt text")
                file = f"{stem}-{pictures}.{_PICTURES[kind]}"
                text = bundle[kind]
                data = transparent(text).encode() if kind == "image/svg+xml" else base64.b64decode(text)
                page.files[file] = data
                shown.append(("picture", f"![{alt or 'picture'}]({file}){{ .nb-picture loading=lazy{_size(data)} }}"))
            else:
                shown.append(_text_of(bundle))
    return [_block(kind, text) for kind, text in shown if text.strip()]


def _text_of(bundle: dict[str, str]) -> tuple[str, str]:
    page, plain = bundle.get("text/html", ""), bundle.get("text/plain", "")
    if "text/markdown" in bundle:
        table = claims_page.stored_table(bundle["text/markdown"])
        return ("claims", table) if table else ("markdown", bundle["text/markdown"])
    # rich writes its tables as <pre> with fixed colors, which a dark page would swallow; its plain text has none.
    if page and not (plain and page.lstrip().startswith("<pre")):
        return "html", page
    return "result", plain


def _block(kind: str, text: str) -> str:
    if kind in ("picture", "claims"):
        return text
    if kind == "html":
        return f'<div class="nb-html">\n{_plain(text).strip()}\n</div>'
    if kind == "markdown":
        return for_python_markdown(text)
    if kind == "traceback":
        return _folded("Traceback", _fence(text, "text nb-out no-copy"))
    names = {"stderr": "nb-stderr", "error": "nb-error"}
    return _fence(_plain(text), f"text nb-out {names.get(kind, '')} no-copy")


def transparent(svg: str) -> str:
    """A drawing without its white ground, so that the page's own is seen, light or dark.

    The white paper behind words on a dark or striped ground stays.
    """
    return _GROUND.sub(r'\1style="fill: none"', svg)


def _size(picture: bytes) -> str:
    """Width and height of a PNG or SVG as attributes: the page keeps room for it until it is loaded."""
    if points := re.search(rb'<svg[^>]* width="([\d.]+)pt" height="([\d.]+)pt"', picture[:4000]):
        width, height = (round(float(number) * 4 / 3) for number in points.groups())
        return f" width={width} height={height}"
    if not picture.startswith(b"\x89PNG") or picture[12:16] != b"IHDR":
        return ""
    width, height = struct.unpack(">II", picture[16:24])
    return f" width={width} height={height}"


def _alt_text(cell: dict[str, Any], output: dict[str, Any], kind: str, number: int) -> str:
    """The alt text of a picture: its own, else the cell's."""
    own = output.get("metadata", {})
    inner = own.get(kind, {})
    alt = inner.get("alt") if isinstance(inner, dict) else None
    alt = alt or own.get("alt") or cell["metadata"].get("alt") or ""
    if isinstance(alt, list):
        alt = alt[number] if number < len(alt) else ""
    return re.sub(r"([\[\]])", r"\\\1", " ".join(alt.split()))


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _first_line(cell: dict[str, Any]) -> str:
    return _joined(cell["source"]).strip().partition("\n")[0]


def _plain(text: str) -> str:
    """Terminal output without colors; a line that was overwritten (progress bars) shows its last state."""
    lines = _ANSI.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def _fence(text: str, classes: str) -> str:
    text = text.strip("\n").rstrip()
    ticks = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", text))])
    return f"{ticks} {{ {' '.join('.' + name for name in classes.split())} }}\n{text}\n{ticks}"


def _folded(title: str, markdown: str, kind: str = "note") -> str:
    return f'??? {kind} "{title}"\n\n' + textwrap.indent(markdown, "    ")


def for_python_markdown(text: str) -> str:
    """Markdown as Jupyter and code hosts read it, rewritten for Python-Markdown, which is stricter.

    Lists, tables and displayed formulas get the blank line before them that they need; what is nested in a list is
    indented by four spaces; `<details>` may hold Markdown; and `#12` at the beginning of a line is no heading.
    """
    lines: list[str] = []
    block = ""  # what ends the open fence or formula, whose lines stay as they are
    for line in text.split("\n"):
        stripped = line.strip()
        if block:
            lines.append(line)
            if stripped.endswith(block) and (block == "$$" or not stripped.strip(block[0])):
                block = ""
                lines.append("")
            continue
        if lines and _needs_blank(lines[-1], line):
            lines.append("")
        if fence := _FENCE.match(line):
            block = fence[1]
        elif stripped.startswith("$$") and stripped.count("$$") == 1:
            block = "$$"
        elif re.match(r" {2,3}\S", line):
            line = "    " + stripped
        line = re.sub(r"^(?=#{1,6}[^#\s])", r"\\", line)
        lines.append(re.sub(r"^<details(?! markdown)", "<details markdown", line))
        if _kind(line) == "formula" and not block:
            lines.append("")
    return "\n".join(lines).strip("\n")


def _needs_blank(before: str, line: str) -> bool:
    kind, last = _kind(line), _kind(before)
    if last == "text" and re.match(r" *(?!1\.)\d+\.", line):
        return False  # a sentence that ends with a number at the beginning of a line; a list begins with 1
    next_item = kind == "list" and last == "continued" and not line.startswith(" ")
    return bool(before.strip()) and kind in ("list", "table", "formula") and kind != last and not next_item


def _kind(line: str) -> str:
    """What a line begins: a block that needs a blank line before it, or text."""
    if _ITEM.match(line):
        return "list"
    if line.startswith("|"):
        return "table"
    if line.startswith("$$"):
        return "formula"
    return "text" if line.strip() and not line.startswith(" ") else "continued"
