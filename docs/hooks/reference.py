"""The pages of the API reference, one per module, found by walking the package without importing it.

Lessons and benchmarks have no pages. A link to one leads to a copy of its file, which a browser shows as text.
"""

from __future__ import annotations

import ast
import posixpath
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import chapters

# Rooms in the order of the house: the ground first, then the chapters, then what stands on them.
ROOMS = (
    "comm",
    "watch",
    "models",
    "data",
    "costs",
    *(chapter.name for chapter in chapters.CHAPTERS),
    "planning",
    "checkpointing",
    "trainer",
    "lessons",
    "ranks",
)
AS_TEXT = ("lessons", "benchmarks")  # rooms whose modules have no pages

SMALL = 130  # lines of a file whose text stands open on its page


@dataclass(frozen=True)
class Module:
    """One module of the package."""

    name: str  # "minitrain.collectives.ring"
    file: Path
    summary: str  # the first sentence of its docstring
    defines: tuple[str, ...] = ()  # its public classes and functions

    @property
    def room(self) -> str:
        """The sub-package it stands in; "" for a module of the package itself."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 2 or self.is_room else ""

    @property
    def is_room(self) -> bool:
        """Whether it is a sub-package itself."""
        return self.file.name == "__init__.py"

    @property
    def has_page(self) -> bool:
        """Whether the reference describes it."""
        return self.room not in AS_TEXT

    @property
    def path(self) -> str:
        """Its file within the repository."""
        return self.name.replace(".", "/") + ("/__init__.py" if self.is_room else ".py")

    @property
    def page(self) -> str:
        """The source path within the site of its page, or of the copy of its file."""
        if not self.has_page:
            return f"source/{self.path}.txt"
        inner = "/".join(self.name.split(".")[1:])
        return f"reference/{inner}/index.md" if self.is_room else f"reference/{inner}.md"


def modules(package: Path) -> list[Module]:
    """All public modules below a package's folder, rooms in their order, each followed by its modules."""
    found = []
    for file in package.rglob("*.py"):
        parts = list(file.relative_to(package.parent).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if len(parts) > 1 and not any(part.startswith("_") for part in parts):
            found.append(Module(".".join(parts), file, *_read(file)))
    return sorted(found, key=_order)


def _order(module: Module) -> tuple[int, str, bool, str]:
    room = module.room
    place = ROOMS.index(room) if room in ROOMS else len(ROOMS) + (not room)
    return place, room, module.name.count(".") > 1, module.name


def _read(file: Path) -> tuple[str, tuple[str, ...]]:
    """The first sentence of a file's docstring, and the public names that it defines."""
    tree = ast.parse(file.read_text("utf-8"))
    summary = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return summary, tuple(name for name in defined if not name.startswith("_"))


def exported(module: Module, all_modules: list[Module]) -> str:
    """The line that imports what a module defines from its chapter, or ""."""
    for room in (each for each in all_modules if each.is_room):
        home = _home(room.file).items()
        where = {name: f"minitrain{at}" if at.startswith(".") else f"{room.name}.{at}" for name, at in home}
        if names := [name for name, at in where.items() if at == module.name]:
            return f"from {room.name} import {', '.join(names)}"
    return ""


@cache
def _home(package: Path) -> dict[str, str]:
    """From which of its files a package has its names."""
    found = re.search(r"^_HOME = (\{.*?\})", package.read_text("utf-8"), re.M | re.S)
    return ast.literal_eval(found[1]) if found else {}


def page(module: Module, all_modules: list[Module]) -> str:
    """The Markdown of a module's page; mkdocstrings fills in what the docstrings say."""
    text = f"---\ntitle: {module.name.rpartition('.')[2]}\n---\n\n::: {module.name}\n\n"
    if line := exported(module, all_modules):
        # A reader who imports a class wants all of its methods on its page, those of its bases too.
        text = text.rstrip() + "\n    options: {inherited_members: true}\n\n"
        text += f'<section class="import" markdown>\n\n```python\n{line}\n```\n\n</section>\n\n'
    if module.is_room:
        inside = [m for m in all_modules if _inside(m, module)]
        text = text.rstrip() + "\n    options: {members: false}\n\n"  # what it passes on stands on its own page
        return text + ("## Modules\n\n" + _list(inside, module.page) if inside else "")
    source = module.file.read_text("utf-8").strip()
    code = f'````{{ .python linenums="1" }}\n{source}\n````'
    # A small form is to be read; longer files are folded.
    # In a section: for the search, what is left out ends with any inner element of the same name.
    if module.room in chapters.BY_NAME and ".full." not in module.name and source.count("\n") < SMALL:
        head = '<section class="small-form" data-search-exclude="" markdown>'
        return f"{text}{head}\n\n`{module.path}`\n\n{code}\n\n</section>\n"
    return text + f'??? quote "The whole file: {module.path}"\n\n{textwrap.indent(code, "    ")}\n'


def small_form_first(html: str) -> str:
    """A page that opens with its import and its small form: the code stands right below the heading."""
    for kind in ("small-form", "import"):
        if found := re.search(f'<section class="{kind}".*?</section>', html, re.DOTALL):
            head, end, rest = (html[: found.start()] + html[found.end() :]).partition("</h1>")
            html = head + end + "\n" + found.group() + rest
    return html


def linked(html: str, address: Callable[[str], str]) -> str:
    """Make the names of modules, and of what they define, links.

    Args:
        html: a page's text; what is in a link, a heading or a block of code already stays as it is.
        address: where a name is described, such as "minitrain.costs.zero.step_traffic"; "" for an unknown one.
    """

    def link(match: re.Match[str]) -> str:
        target = address(match["name"]) if match["name"] else ""
        return f'<a href="{target}">{match.group()}</a>' if target else match.group()

    return _CODE.sub(link, html)


_CODE = re.compile(
    r"<(?P<tag>a|h[1-6]|pre|svg)\b.*?</(?P=tag)>|<code>(?P<name>minitrain(?:\.\w+)+)(?:\(\))?</code>", re.DOTALL
)


def names(all_modules: list[Module]) -> dict[str, str]:
    """Every module and public name with its page's source path and anchor: "reference/costs/zero.md#minitrain.…"."""
    found = {}
    for module in all_modules:
        found[module.name] = module.page
        for name in (f"{module.name}.{each}" for each in module.defines):
            found[name] = f"{module.page}#{name}" if module.has_page else module.page
    return found


def _inside(module: Module, room: Module) -> bool:
    return module is not room and module.name.rpartition(".")[0] == room.name


def _list(modules: list[Module], page: str) -> str:
    """Modules with the first sentence of each, linked from a page."""
    folder = posixpath.dirname(page)
    lines = [f"- [`{m.name}`]({posixpath.relpath(m.page, folder)}): {m.summary}\n" for m in modules]
    return "".join(lines) + "\n"


def on_lines_of_their_own(html: str) -> str:
    """The labels of a module's head, each at the beginning of a line, as in the file."""
    return re.sub(r"\n(<strong>\w+\.</strong>|(?:The full form|Also called)\b)", r"<br>\n\1", html)


def breakable(html: str) -> str:
    """Let the long name at the top of a module's page break after its dots."""
    name = re.compile(r'(doc-module-name">)([\w.]+)(</span>)')
    return name.sub(lambda match: match[1] + match[2].replace(".", ".<wbr>") + match[3], html, count=1)


def overview(all_modules: list[Module], page: str = "reference/index.md") -> str:
    """The reference's first page: all modules, room by room."""
    text = "# API reference\n\nLinks to lessons and benchmarks lead to the files themselves.\n\n"
    for room in [m for m in all_modules if m.is_room]:
        text += f"## [{room.name}]({posixpath.relpath(room.page, posixpath.dirname(page))})\n\n{room.summary}\n\n"
        text += _list([m for m in all_modules if _inside(m, room)], page)
    outside = [m for m in all_modules if not m.room]
    return text + ("## On top of the rooms\n\n" + _list(outside, page) if outside else "")


def navigation(all_modules: list[Module]) -> list[dict[str, Any]]:
    """The reference's part of the site's navigation: room by room, each with its modules and then its sub-packages."""

    def entry(module: Module) -> dict[str, Any]:
        name = module.name.rpartition(".")[2]
        if not module.is_room:
            return {name: module.page}
        inside = sorted((m for m in all_modules if _inside(m, module)), key=lambda m: m.is_room)
        return {name: [module.page, *map(entry, inside)]}

    top = [module for module in all_modules if module.name.count(".") == 1 and module.has_page]
    return [entry(module) for module in sorted(top, key=lambda m: not m.is_room)]
