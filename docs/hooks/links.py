"""Links between notebooks, pages and source files.

They are written so that they work where the files lie, as a code host shows them: `../docs/glossary.md` from a
notebook, `../tutorials/00_matrix_product.ipynb` from a page, `../minitrain/collectives/ring.py` from both. Here each
becomes a link between two pages of the site; MkDocs then checks that the target exists.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

# Code comes first: what stands in a fence or between backticks is no link.
_CODE_OR_LINK = re.compile(
    r"(?P<fence>^[ \t>]*(?P<ticks>`{3,}|~{3,})[^\n]*\n.*?^[ \t>]*(?P=ticks)[`~]*[ \t]*$)"
    r"|(?P<span>(?P<quote>`+)(?!`).+?(?<!`)(?P=quote)(?!`))"
    r"|(?P<open>\]\(\s*<?|^\[[^\]\n]+\]:\s*<?)(?P<url>[^)\s>]+)",
    re.MULTILINE | re.DOTALL,
)
_IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<url>[^)\s]+)")


def rewrite(markdown: str, path: str, page: str, pages: Mapping[str, str]) -> str:
    """Point the links of one page to the site's pages.

    Args:
        markdown: the page's text.
        path: where the text lies in the repository, "tutorials/00_matrix_product.ipynb".
        page: the page's own source path within the site, "tutorials/matrix_product.md".
        pages: source path within the site of each repository path that has one.

    Returns:
        The text; a link whose target is no part of the site stays as it is, for the build to complain about.
    """

    def link(match: re.Match[str]) -> str:
        url = match["url"]
        if url is None or ":" in url.split("/")[0] or url.startswith(("/", "#")):
            return match.group()
        target, mark, anchor = url.partition("#")
        there = pages.get(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
        if there is None:
            return match.group()
        return f"{match['open']}{posixpath.relpath(there, posixpath.dirname(page) or '.')}{mark}{anchor}"

    return _CODE_OR_LINK.sub(link, markdown)


def absolute(markdown: str, path: str, repository: str) -> str:
    """Point the links of a file that leaves its folder to the code host.

    Args:
        markdown: the text.
        path: where the text lies in the repository.
        repository: where the code host shows the repository's files, "https://github.com/owner/name/blob/main/".
    """

    def link(match: re.Match[str]) -> str:
        url = match["url"]
        if url is None or ":" in url.split("/")[0] or url.startswith(("/", "#")):
            return match.group()
        target, mark, anchor = url.partition("#")
        return (
            match["open"]
            + repository
            + posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            + mark
            + anchor
        )

    return _CODE_OR_LINK.sub(link, markdown)


def images_without_alt(markdown: str) -> Iterator[str]:
    """The addresses of images that say nothing to a reader who cannot see them."""
    prose = _CODE_OR_LINK.sub(lambda match: "" if match["fence"] or match["span"] else match.group(), markdown)
    for match in _IMAGE.finditer(prose):
        if not match["alt"].strip():
            yield match["url"]


def kept_together(html: str) -> str:
    """Mark short code within a text, which a browser would break after a hyphen: `--timeout 3`."""
    return re.sub(r"(?<!<pre>)<code>(?=[^<\n]{1,22}</code>)", '<code class="short">', html)
