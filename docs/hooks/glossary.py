"""The glossary's alphabetical index: every word in bold, with a link to the place that explains it."""

from __future__ import annotations

import itertools
import re

_EXPLAINED = re.compile(r"\*\*(?P<words>[^*\n]+)\*\*")


def with_index(markdown: str) -> str:
    """The page with an anchor at each entry, and the index in place of `<!-- site:index -->`."""
    found: dict[str, str] = {}

    def anchored(match: re.Match[str]) -> str:
        words = match["words"]
        anchor = "word-" + re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
        if words in found:
            return match[0]
        found[words] = anchor
        return f"**{words}**{{ #{anchor} }}"

    page = _EXPLAINED.sub(anchored, markdown)
    entries = sorted(found.items(), key=lambda entry: entry[0].lower())
    lines = []
    for letter, group in itertools.groupby(entries, key=lambda entry: entry[0][0].upper()):
        links = ", ".join(f"[{words}](#{anchor})" for words, anchor in group)
        lines.append(f"- **{letter}** · {links}")
    return page.replace("<!-- site:index -->", "\n".join(lines))
