"""What the theme leaves out for readers who use a screen reader or the keyboard alone."""

from __future__ import annotations

import re

_SEARCH = re.compile(r'(<div class="md-search"[^>]*role="dialog")')
_SECTION = re.compile(
    r'<span class="md-ellipsis">\s*(?P<name>[^<]*?)\s*</span>\s*</a>\s*'
    r'<label class="md-nav__link[^"]*" for="__nav_\w+" id="(?P<label>\w+)"'
)
_AS_IT_IS = re.compile(r"(<(?:pre|textarea|script|style)\b.*?</(?:pre|textarea|script|style)>)", re.DOTALL)
_SPACES = re.compile(r"\s*\n\s*")
# Names and spaces look like the code around them, and every line's number like the one before.
_PLAIN = re.compile(r'<span class="[nw]">([^<]*)</span>')
_NUMBERS = re.compile(r'</span>\n<span class="normal">')
_EMPTY_HEAD = re.compile(r"<th((?: [^>]*)?)></th>")


def page(html: str) -> str:
    """Name the search and the menu's sections, and make a table's empty head a plain cell."""
    html = _SEARCH.sub(r'\1 aria-label="Search"', html)
    names: dict[str, int] = {}
    for section in _SECTION.finditer(html):
        # The theme names a section's menu after an empty label. Several may have the same name: zero's full forms, …
        number = names[section["name"]] = names.get(section["name"], 0) + 1
        name = f"Pages of {section['name']}" + (f", {number}" if number > 1 else "")
        html = html.replace(f'aria-labelledby="{section["label"]}"', f'aria-label="{name}"', 1)
    return lighter(_EMPTY_HEAD.sub(r"<td\1></td>", html))


def lighter(html: str) -> str:
    """Without spaces and empty lines where a browser shows none, and marks of code that look like none: a sixth."""
    parts = _AS_IT_IS.split(_NUMBERS.sub("\n", _PLAIN.sub(r"\1", html)))
    return "".join(part if odd % 2 else _SPACES.sub("\n", part) for odd, part in enumerate(parts))
