"""LaTeX to MathML at build time: no script and no font is loaded by the page.

`pymdownx.arithmatex` (generic) finds the formulas and leaves them in a span or div; here their content is replaced.
"""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

GENERIC = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
FUNCTION = re.compile(r"(<mi>(?:ln|log|exp|sin|cos|tanh)</mi>)(?=<(?:mi|mn|mfrac|msub|msup|msqrt))")
UPRIGHT_GREEK = re.compile(r"<mi>(&#x00(?:39[1-9A-F]|3A[0-9]);)</mi>")


def to_mathml(latex: str, block: bool = False) -> str:
    r"""One formula as a MathML element.

    Raises:
        ValueError: a command that the converter does not know; it would stand on the page as it is.
    """
    # The converter knows the environment by one of its two names only.
    known = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", latex)
    mathml = convert(known, display="block" if block else "inline")
    shown = html.unescape(re.sub(r"<mtext>.*?</mtext>|<[^>]*>", "", mathml))
    if left := re.search(r"\\[A-Za-z]+|&", shown):
        raise ValueError(f"{left.group()} in the formula {latex.strip()!r} cannot be turned into MathML")
    # TeX leaves a thin space between a function's name and what it is applied to, but for a parenthesis.
    mathml = FUNCTION.sub(r'\1<mspace width="0.167em"/>', mathml)
    # Greek capitals are upright in TeX and slanted in MathML.
    return UPRIGHT_GREEK.sub(r'<mi mathvariant="normal">\1</mi>', mathml)


def replace_formulas(page: str) -> tuple[str, list[str]]:
    """Turn all formulas of a page's HTML into MathML; the second value lists what could not be turned."""
    problems: list[str] = []

    def formula(match: re.Match[str]) -> str:
        latex, block = html.unescape(match["latex"]), match["open"] == "["
        try:
            return f'<{match["tag"]} class="formula">{to_mathml(latex, block)}</{match["tag"]}>'
        except Exception as error:  # the converter's own errors have no common base
            problems.append(str(error) or f"{type(error).__name__} in the formula {latex!r}")
            return match.group()

    return GENERIC.sub(formula, page), problems
