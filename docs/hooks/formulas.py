"""A claim's formula, written in plain text such as `2(n−1)/n · S`, as MathML.

The text stays what it is, sign by sign, with words upright and letters slanted. Four things get a shape: brackets,
indices and exponents, roots, and fractions. `/` becomes a fraction only where its two sides are certain: letters that
touch bind more tightly than `/` (`V/16hL` is V over 16hL), and a space or `·` ends a side. Otherwise the slash stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape

# Letters that touch are a product, but for these words and for most of three small letters and more.
WORDS = frozenset("of to in on at or by if is no an as be go it up id".split())
WORDS |= frozenset("RMS CV MFU KB KiB DDP AdamW Adam Nesterov ZeRO tp cp ep lr".split())
PRODUCTS = frozenset("bsh sbh wbsh abs mkn nsw abd shu".split())
FUNCTIONS = frozenset("max min log log2 ln exp sin cos lcm mod root argmin".split())
SUMS = "ΣΠ"
RELATIONS = frozenset("=≤≥<>≈←→")
OPERATORS = frozenset("+−±·×:;,#") | RELATIONS
BRACKETS = {"(": ")", "[": "]", "{": "}", "⌈": "⌉", "⌊": "⌋", "⟨": "⟩", "‖": "‖", "|": "|"}
HIGH: dict[str, str] = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀᵉᶠⁱᵏⁿᵐ", "0123456789+−Tefiknm", strict=True))
LOW: dict[str, str] = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ᵢⱼₖᵣₙₘₛᵥₚₜ", "0123456789+−ijkrnmsvpt", strict=True))
SCRIPTS = ("high", "low", "script", "prime")

LETTER = rf"(?![{''.join(HIGH)}{''.join(LOW)}])[^\W\d_][\u0300-\u036f]*"  # with what stands above it
TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<word>\d+'s|(?<=\d )B\b|(?<= )a(?= [a-z]{3})|ZeRO-\d|SplitMix64|float\d+"  # "8 B" are bytes, "a step" is one
    r"|[a-z]{3,}(?:-[a-z]{3,})+|[a-z]{3,}'s?)"
    r"|(?P<number>\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:\.\d+)?|[½…])"
    rf"|(?P<high>[{''.join(HIGH)}]+)|(?P<low>[{''.join(LOW)}]+)"
    rf"|(?P<script>[_^])|(?P<letters>log2|(?:{LETTER})+)|(?P<prime>['′]|\*(?![\w(]))"
    r"|(?P<sign>[√/∂∇()\[\]{}⌈⌉⌊⌋⟨⟩‖|+−±·×:;,=≤≥<>≈←→#])"
)
LONG = 14  # parts beyond which a formula may break before + and −


@dataclass
class Node:
    """A part of a formula."""

    kind: str  # a token's, or "bracket", "root", "fraction"; signs are "operator", "slash" or "bar"
    text: str = ""
    parts: list[Node] = field(default_factory=list)  # in a bracket, under a root; all that a fraction was made of
    low: list[Node] = field(default_factory=list)
    high: list[Node] = field(default_factory=list)
    primes: str = ""
    sides: tuple[list[Node], list[Node]] = ((), ())  # type: ignore[assignment]  # of a fraction


def to_html(formula: str) -> str:
    """The formula as MathML; words that explain it stand next to it as text.

    Raises:
        ValueError: A sign is unknown, or a bracket is not closed.
    """
    return _in_pieces(_with_fractions(Parser(formula).sequence()))


# ---- from text to nodes ----


class Parser:
    """Reads a formula from left to right."""

    def __init__(self, formula: str) -> None:
        self.formula, self.at = formula, 0
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(formula):
            match = TOKEN.match(formula, position)
            if not match:
                raise ValueError(f"unknown sign {formula[position]!r} in {formula!r}")
            self.tokens += _split(match) if match.lastgroup == "letters" else [(str(match.lastgroup), match[0])]
            position = match.end()

    def next(self) -> tuple[str, str]:
        """The next token, which stays; at the end ("", "")."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ("", "")

    def sequence(self, until: str = "") -> list[Node]:
        """All nodes up to a closing bracket, or to the end."""
        nodes: list[Node] = []
        while self.next() != ("", ""):
            if self.next() == ("sign", until):
                self.at += 1
                return nodes
            nodes.append(self.node())
        if until:
            raise ValueError(f"{until!r} is missing in {self.formula!r}")
        return nodes

    def node(self) -> Node:
        """One node with its primes, indices and exponents."""
        node = self.plain()
        while self.next()[0] in SCRIPTS:
            kind, text = self.next()
            self.at += 1
            if kind == "prime":
                node.primes += "′" if text == "'" else text
            elif kind == "script":
                script = self.script()
                node.low, node.high = (script, node.high) if text == "_" else (node.low, script)
            else:
                signs = LOW if kind == "low" else HIGH
                script = Parser("".join(signs[sign] for sign in text)).sequence()
                node.low, node.high = (script, node.high) if kind == "low" else (node.low, script)
        return node

    def script(self) -> list[Node]:
        """What follows `_` or `^`: perhaps a minus, then a number, a bracket, or all letters that touch."""
        minus = [self.plain()] if self.next()[1] == "−" else []
        letters = ""
        while self.next()[0] in ("letter", "word"):
            letters += self.next()[1]
            self.at += 1
        if letters:
            return [*minus, Node("letter" if len(letters) == 1 else "word", letters)]
        node = self.plain()
        return node.parts if node.text in ("(", "{") and not minus else [*minus, node]

    def plain(self) -> Node:
        """One node without what is attached to it."""
        kind, text = self.next()
        self.at += 1
        if kind in ("", *SCRIPTS):
            raise ValueError(f"something is missing at {text!r} in {self.formula!r}")
        if kind != "sign":
            return Node(kind, text)
        if text == "√":
            return Node("root", parts=self.under_root())
        if text == "|" and (self.next()[0] == "space" or ("sign", "|") not in self.tokens[self.at :]):
            return Node("bar", text)  # of a conditional probability
        if text in BRACKETS:
            return Node("bracket", text, _with_fractions(self.sequence(BRACKETS[text])))
        if text in "∂∇":
            return Node("letter", text)
        if text != "/" and text not in OPERATORS:
            raise ValueError(f"{text!r} closes nothing in {self.formula!r}")
        return Node("slash" if text == "/" else "operator", text)

    def under_root(self) -> list[Node]:
        """What touches the root: a letter or number, a bracket, or a function with its bracket."""
        node = self.node()
        if node.kind == "function" and node.text not in SUMS and self.next()[1] == "(":
            return [node, self.node()]
        if node.kind in ("space", "operator", "function", "word"):
            raise ValueError(f"unclear what is under the root in {self.formula!r}")
        return node.parts if _is_plain_bracket(node) else [node]


def _split(match: re.Match[str]) -> list[tuple[str, str]]:
    """Letters that touch: a word, the name of a function, or a product of letters."""
    text, before = match[0], match.string[: match.start()]
    if text in FUNCTIONS:
        return [("function", text)]
    small = text.isascii() and text.islower() and len(text) > 2 and text not in PRODUCTS
    if (small or text in WORDS) and not before[-1:].isdigit():
        return [("word", text)]
    return [("function" if each in SUMS else "letter", each) for each in re.findall(LETTER, text)]


def _is_plain_bracket(node: Node) -> bool:
    return node.kind == "bracket" and node.text == "(" and not (node.low or node.high or node.primes)


# ---- fractions ----


def _with_fractions(nodes: list[Node]) -> list[Node]:
    """The same nodes, with a fraction in place of each slash whose two sides are certain."""
    done: list[Node] = []
    rest = list(nodes)
    while rest:
        node = rest.pop(0)
        sides = _sides(done, rest) if node.kind == "slash" else None
        if sides is None:
            done.append(node)
            continue
        top, bottom = done[sides[0] :], rest[: sides[1]]
        del done[sides[0] :], rest[: sides[1]]
        done.append(Node("fraction", "/", [*top, node, *bottom], sides=(_trimmed(top), _trimmed(bottom))))
    return done


def _sides(done: list[Node], rest: list[Node]) -> tuple[int, int] | None:
    """Where the numerator begins in what was read, and where the denominator ends in what follows; None if unclear.

    A side of `a/b` ends at a space, one of `a / b` does not. A sum, a logarithm or a word next to it makes it unclear
    how far it reaches, and so does a second slash.
    """
    spaced = [part[index].kind == "space" for part, index in ((done, -1), (rest, 0)) if part]
    if len(spaced) < 2 or spaced[0] != spaced[1]:
        return None
    ends = ("operator", "slash", "bar") if spaced[0] else ("operator", "slash", "bar", "space")
    begin, end = len(done) - spaced[0], int(spaced[0])
    while begin and done[begin - 1].kind not in ends:
        begin -= 1
    while end < len(rest) and rest[end].kind not in (*ends, "space"):
        end += 1
    top, bottom = _trimmed(done[begin:]), rest[spaced[0] : end]
    after = _trimmed(rest[end:])[:1]
    before = [] if spaced[0] else _trimmed(done[:begin])[-1:]
    open_ended = any(node.kind == "function" for node in before) or (
        spaced[0] and after and after[0].kind != "operator"
    )
    chain = any(node.kind in ("slash", "fraction") for node in [*top, *bottom, *after[:1]] if node.text == "/")
    words = any(node.kind == "word" for node in top + bottom) and (spaced[0] or len(top) + len(bottom) > 2)
    nothing = [node.text for node in bottom] == ["0"]  # "0 / 0" are two values
    if not top or not bottom or nothing or open_ended or chain or words or not (_is_closed(top) and _is_closed(bottom)):
        return None
    return begin, end


def _is_closed(nodes: list[Node]) -> bool:
    """Whether every function is applied to a bracket that touches it; a sum reaches nobody knows how far."""
    following = [*nodes[1:], Node("space")]
    return all(
        node.kind != "function" or (node.text not in SUMS and then.kind == "bracket")
        for node, then in zip(nodes, following, strict=True)
    )


def _trimmed(nodes: list[Node]) -> list[Node]:
    """Without spaces at both ends."""
    solid = [index for index, node in enumerate(nodes) if node.kind != "space"]
    return nodes[solid[0] : solid[-1] + 1] if solid else []


# ---- from nodes to MathML ----


def _in_pieces(nodes: list[Node]) -> str:
    """Words as text and formulas between them; a long formula may break before + and −, and before a relation."""
    solid = [node for node in nodes if node.kind != "space"]
    long = sum(1 + len(node.parts) for node in solid) > LONG
    pieces = [""]  # texts and formulas in turn
    run: list[Node] = []

    def close() -> None:
        if _trimmed(run):
            line, before = _trimmed(run), "".join(pieces).rstrip()
            follows = bool(before) and before[-1] not in ",;:"
            if line[0].kind == "operator" and follows:  # which brings its own space
                pieces[-1] = pieces[-1].rstrip()
            pieces.append(f'<math displaystyle="true">{_line(line, follows=follows)}</math>')
            pieces.append(" " if run[-1].kind == "space" and line[-1].kind != "operator" else "")
        run.clear()

    for node in nodes:
        index = next((place for place, each in enumerate(solid) if each is node), 0)
        if (node.kind == "word" and not _is_operand(solid, index)) or (node.kind == "operator" and node.text in ":;,"):
            close()
            pieces[-1] += escape(node.text)
        elif node.kind == "space" and not run:
            pieces[-1] += " "
        else:
            if long and run and node.kind == "operator" and node.text in RELATIONS | {"+", "−", "±"}:
                close()
                pieces[-1] = "<wbr>"
            run.append(node)
    close()
    return re.sub(" +", " ", "".join(pieces)).strip()


def _is_operand(solid: list[Node], index: int) -> bool:
    """Whether a word is a factor or a term, and not a part of a sentence."""
    near = [solid[i] for i in (index - 1, index + 1) if 0 <= i < len(solid)]
    signs = any(node.kind == "slash" or (node.kind == "operator" and node.text in "·+−") for node in near)
    return bool(solid[index].high or solid[index].low) or (signs and not any(node.kind == "word" for node in near))


def _line(nodes: list[Node], flat: bool = False, follows: bool = False) -> str:
    """Nodes side by side.

    Args:
        nodes: They.
        flat: Whether fractions are written with a slash, as within another fraction or an exponent.
        follows: Whether this goes on from another formula, so that a sign at the beginning stands between two things.
    """
    if flat:
        nodes = [inner for node in nodes for inner in (node.parts if node.kind == "fraction" else [node])]
    text = ""
    for index, node in enumerate(nodes):
        before = nodes[index - 1] if index else None
        after = nodes[index + 1] if index + 1 < len(nodes) else None
        if node.kind == "space":
            signs = any(each is None or each.kind in ("operator", "slash", "bar") for each in (before, after))
            text += "" if signs else '<mspace width="0.22em"/>'
        elif node.kind == "operator":
            solid = _trimmed(nodes[:index])
            first = not follows if not solid else solid[-1].kind == "operator"
            text += f'<mo form="{"prefix" if first and node.text in "+−±" else "infix"}">{escape(node.text)}</mo>'
        else:
            text += _with_scripts(node, flat)
    return text


def _grouped(nodes: list[Node]) -> str:
    """An index, an exponent or a side of a fraction."""
    alone = len(nodes) == 1 and nodes[0].kind != "fraction"
    return _line(nodes, flat=True) if alone else f"<mrow>{_line(nodes, flat=True)}</mrow>"


def _with_scripts(node: Node, flat: bool) -> str:
    text = _bare(node, flat)
    if node.primes:
        text = f"<msup>{text}<mo>{node.primes}</mo></msup>"
    low, high = (_grouped(script) if script else "" for script in (node.low, node.high))
    tag = {(True, True): "msubsup", (True, False): "msub", (False, True): "msup"}.get((bool(low), bool(high)))
    return f"<{tag}>{text}{low}{high}</{tag}>" if tag else text


def _bare(node: Node, flat: bool) -> str:
    if node.kind == "fraction":
        sides = (side[0].parts if len(side) == 1 and _is_plain_bracket(side[0]) else side for side in node.sides)
        return f"<mfrac>{''.join(_grouped(side) for side in sides)}</mfrac>"
    if node.kind == "bracket":
        left, right = escape(node.text), escape(BRACKETS[node.text])
        inside = _line(node.parts, flat)
        return f'<mrow><mo form="prefix">{left}</mo>{inside}<mo form="postfix">{right}</mo></mrow>'
    if node.kind == "root":
        return f"<msqrt>{_line(node.parts, flat)}</msqrt>"
    if node.kind == "number":
        return f"<mn>{node.text}</mn>"
    if node.kind == "letter":  # Greek capitals and signs are upright
        upright = ' mathvariant="normal"' if node.text in "ΨΦ∂∇" else ""
        return f"<mi{upright}>{node.text}</mi>"
    if node.kind == "word":
        return f"<mtext>{escape(node.text)}</mtext>"
    if node.kind == "function":
        if node.text in SUMS:
            return f'<mo form="prefix" largeop="false" lspace="0" rspace="0.1em">{node.text}</mo>'
        return "<msub><mi>log</mi><mn>2</mn></msub>" if node.text == "log2" else f"<mi>{node.text}</mi>"
    # A slash as narrow as in the text; a bar between a thing and its condition.
    space = "0.1em" if node.kind == "slash" else "0.25em"
    return f'<mo form="infix" stretchy="false" lspace="{space}" rspace="{space}">{node.text}</mo>'
