"""Which functions of `minitrain.costs` a claim's prediction comes from, found by reading the lessons' files.

Nothing runs. Each `Claim(...)` of a lesson has a sentence, a formula and a prediction, which often pass through local
variables and the parameters of helpers. All three are followed back to where they are written out. A parameter leads to
the callers of its function. Each caller is a case of its own, and so is each round of a loop over values that are
written out. A claim is recognized by its sentence and formula. Where two functions may be meant, none is named.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

COSTS, LESSONS = "minitrain.costs.", "minitrain.lessons."
ANY = ".*"
UNSURE = frozenset({"?"})
DEPTH = 5  # callers of callers
STEPS = 40  # from a prediction back to a function
CASES = 300  # ways to reach one claim
MOST = 12  # rounds of a loop, and versions of a text, that are told apart
# Methods of `Rows` that make a claim: which argument is the formula, and which one the prediction.
MAKERS = {"add": (1, 2, "predicted"), "time": (1, 2, "predicted"), "near": (4, 3, "bound")}
FORMULA = 5  # signs by which a formula alone tells a claim


class File:
    """One file: its functions, what it imports, and its constants."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        tree = ast.parse(path.read_text("utf-8"))
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.classes = {node.name: _fields(node) for node in tree.body if isinstance(node, ast.ClassDef)}
        self.constants = _assigned(tree.body)
        self.imports: dict[str, str] = {}  # local name -> "minitrain.costs.zero", or "minitrain.costs.zero.volume"
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self.imports |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        self._assigned: dict[str, dict[str, list[Value]]] = {}

    def assigned(self, function: ast.FunctionDef) -> dict[str, list[Value]]:
        """The values of a function's local variables."""
        if function.name not in self._assigned:
            self._assigned[function.name] = _assigned(ast.walk(function))
        return self._assigned[function.name]


@dataclass(frozen=True)
class Scope:
    """A function's body as one of its callers sees it, and within a loop as one round sees it.

    Attributes:
        file: Where the function is.
        function: It.
        given: What its parameters and the loop's variables are: an expression, and the scope in which that is written.
        loops: The names among them that belong to loops.
    """

    file: File
    function: ast.FunctionDef
    given: Mapping[str, tuple[ast.expr, Scope]] = field(default_factory=dict)
    loops: frozenset[str] = frozenset()

    @cached_property
    def assigned(self) -> dict[str, list[Value]]:
        """The values of the local variables."""
        local = self.file.assigned(self.function)
        return {name: values for name, values in local.items() if name not in self.loops} if self.loops else local

    def round(self, target: ast.expr, item: ast.expr, where: Scope) -> Scope:
        """The scope of one round of a loop: its variables are in the target, its item is written in another scope."""
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        items = item.elts if isinstance(target, ast.Tuple) and isinstance(item, ast.Tuple) else [item]
        if len(targets) != len(items):
            return self
        names = {one.id: (each, where) for one, each in zip(targets, items, strict=True) if isinstance(one, ast.Name)}
        return Scope(self.file, self.function, {**self.given, **names}, self.loops | set(names))


@dataclass(frozen=True)
class Value:
    """What a name is given: an expression, or one element of each of its elements."""

    expression: ast.expr
    each: bool = False  # a loop's variable: one after the other
    place: int | None = None  # of the tuple that is unpacked


@dataclass(frozen=True)
class Origin:
    """One claim as the file has it: patterns of its sentence and formula, and the functions of its prediction."""

    what: str
    formula: str
    functions: frozenset[str]  # "minitrain.costs.zero.volume"

    @property
    def written_out(self) -> int:
        """How many signs of the two patterns are not left open."""
        return _signs(self.what) + _signs(self.formula)

    def fits(self, claim: Mapping[str, str]) -> bool:
        """Whether a claim that was made may be this one."""
        pairs = ((self.what, claim["what"]), (self.formula, claim["formula"]))
        if 2 * _signs(self.what) < len(claim["what"]) and (ANY in self.formula or _signs(self.formula) < FORMULA):
            return False  # too open to recognize one
        return all(re.fullmatch(pattern, text, re.DOTALL) for pattern, text in pairs)


def functions_of(claim: Mapping[str, str], origins: list[Origin]) -> list[str]:
    """The functions that a claim's prediction comes from; [] if there are none, or if it is unclear which."""
    fits = [origin for origin in origins if origin.fits(claim)]
    most = max((origin.written_out for origin in fits), default=0)  # the most exact of them
    found = {origin.functions for origin in fits if origin.written_out == most}
    sources = found.pop() if len(found) == 1 and most else UNSURE
    return [] if UNSURE <= sources else sorted(sources)


class Lessons:
    """The lessons of a package; a file is read when it is first needed."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.files: dict[str, File | None] = {}

    def file(self, module: str) -> File | None:
        """A module's file; None if the package has none of that name."""
        if module not in self.files:
            path = self.package.parent / (module.replace(".", "/") + ".py")
            self.files[module] = File(module, path) if path.exists() else None
        return self.files[module]

    def origins(self, technique: str) -> list[Origin]:
        """All claims that the lesson of a technique can make, by itself and with its helpers in other files."""
        start = self.file(technique.replace("minitrain.", LESSONS, 1))
        if not start or "demo" not in start.functions:
            return []
        found: dict[tuple[str, str, frozenset[str]], Origin] = {}
        waiting = [(Scope(start, start.functions["demo"]), 0)]
        cases = 0
        while waiting and cases < CASES:
            scope, depth = waiting.pop(0)
            cases += 1
            for call, where in self._calls(scope.function, scope):
                for origin in self._made_by(call, where):
                    found[origin.what, origin.formula, origin.functions] = origin
                if depth < DEPTH and (inner := self._entered(call, where)):
                    waiting.append((inner, depth + 1))
        return list(found.values())

    def _calls(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
        """All calls in some code; those in a loop over values that are written out come once for each value."""
        if isinstance(node, ast.Call):
            yield node, scope
        loops = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
        rounds = [scope]
        for loop in loops:
            told = [each.round(loop.target, *item) for each in rounds for item in self._items(loop.iter, each)]
            rounds = told or rounds
        for inside in rounds:
            for child in ast.iter_child_nodes(node):
                yield from self._calls(child, inside)

    def _items(self, iterated: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """What a loop goes through, where that is written out, and where; else nothing."""
        pairs = (
            isinstance(iterated, ast.Call)
            and isinstance(iterated.func, ast.Attribute)
            and iterated.func.attr == "items"
        )
        container = iterated.func.value if pairs else iterated  # type: ignore[attr-defined]
        written, where = self._written(container, scope, 4)
        items: list[ast.expr] = []
        if pairs and isinstance(written, ast.Dict):
            items = [ast.Tuple([k, v], ast.Load()) for k, v in zip(written.keys, written.values, strict=True) if k]
        elif not pairs and isinstance(written, ast.Tuple | ast.List):
            items = written.elts
        return [(item, where) for item in items] if len(items) <= MOST else []

    def _written(self, expression: ast.expr, scope: Scope, steps: int) -> tuple[ast.expr | None, Scope]:
        """The expression that a name stands for, if there is only one, and the scope in which it is written."""
        if not isinstance(expression, ast.Name) or steps <= 0:
            return expression, scope
        if expression.id in scope.given and expression.id not in scope.assigned:
            there, outer = scope.given[expression.id]
            return self._written(there, outer, steps - 1)
        values = scope.assigned.get(expression.id) or scope.file.constants.get(expression.id, [])
        single = len(values) == 1 and not values[0].each
        return self._written(_unpacked(values[0]), scope, steps - 1) if single else (None, scope)

    def _field(self, expression: ast.expr, scope: Scope) -> tuple[ast.expr, Scope] | None:
        """What an attribute such as `verb.cost` was given, where the object is made by `lesson.Verb(…, costs.ring)`."""
        if not isinstance(expression, ast.Attribute) or not isinstance(expression.value, ast.Name):
            return None
        made, where = scope.given.get(expression.value.id, (None, scope))
        if not isinstance(made, ast.Call) or expression.value.id in scope.assigned:
            return None
        module, name = self._target(made.func, where)
        file = self.file(module) if module.startswith(LESSONS) else None
        fields = file.classes.get(name, []) if file else []
        value = _argument(made, fields.index(expression.attr), expression.attr) if expression.attr in fields else None
        return (value, where) if value else None

    def _made_by(self, call: ast.Call, scope: Scope) -> Iterator[Origin]:
        """The claim that a call makes, or the claim that it folds several into."""
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        what, cases = _argument(call, 0, "what"), _argument(call, 1, "cases")
        made = [(call, scope)] if name in ("Claim", *MAKERS) else []
        if name == "fold" and cases:
            made = list(self._folded(cases, scope, STEPS))
        for claim, where in made:
            at, next_to, named = MAKERS.get(name, (1, 2, "predicted"))
            formula, predicted = _argument(claim, at, "formula"), _argument(claim, next_to, named)
            if what and formula and predicted:
                sources = self._sources(predicted, where)
                for sentence in filter(None, self._patterns(what, scope)):  # an empty one is for `fold` to fill in
                    for text in self._patterns(formula, where):
                        yield Origin(sentence, text, sources)

    def _folded(self, cases: ast.expr, scope: Scope, steps: int) -> Iterator[tuple[ast.Call, Scope]]:
        """The calls of `Claim` in an expression, in the variables it uses and in the functions it calls."""
        for node in _inside(cases):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Claim":
                yield node, scope
            elif isinstance(node, ast.Call) and steps > 0 and (inner := self._entered(node, scope)):
                for value in _returned(inner.function):
                    yield from self._folded(value, inner, steps // 2)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and steps > 0:
                values = [*scope.assigned.get(node.id, ()), *scope.assigned.get(f"{node.id}[]", ())]
                for value in values:
                    yield from self._folded(value.expression, scope, steps // 2)

    def _target(self, expression: ast.expr, scope: Scope) -> tuple[str, str]:
        """The module and the name that an expression stands for, as in `costs.volume`; ("", "") if for neither."""
        if isinstance(expression, ast.Name):
            full = scope.file.imports.get(expression.id, f"{scope.file.name}.{expression.id}")
            known = expression.id in scope.given or expression.id in scope.assigned
            return ("", "") if known else (full.rpartition(".")[0], full.rpartition(".")[2])
        if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
            return scope.file.imports.get(expression.value.id, ""), expression.attr
        return "", ""

    def _entered(self, call: ast.Call, scope: Scope) -> Scope | None:
        """The scope of the function of a lesson that is called; None for other functions."""
        module, name = self._target(call.func, scope)
        file = self.file(module) if module.startswith(LESSONS) else None
        if not file or name not in file.functions or file.functions[name] is scope.function:
            return None
        function = file.functions[name]
        parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if any(isinstance(each, ast.Starred) for each in call.args):
            return Scope(file, function)
        given = dict(zip(parameters, call.args, strict=False))
        given |= {each.arg: each.value for each in call.keywords if each.arg}
        return Scope(file, function, {key: (value, scope) for key, value in given.items()})

    def _sources(self, expression: ast.AST, scope: Scope, steps: int = STEPS) -> frozenset[str]:
        """The functions of costs that the value of an expression comes from; `UNSURE` among them if that is open."""
        if steps <= 0:
            return UNSURE
        module, name = self._target(expression, scope) if isinstance(expression, ast.expr) else ("", "")
        if f"{module}.".startswith(COSTS):
            file = self.file(module)
            return frozenset({f"{module}.{name}"}) if file and name in file.functions else frozenset()
        if isinstance(expression, ast.expr) and (there := self._field(expression, scope)):
            return self._sources(*there, steps - 1)
        if isinstance(expression, ast.Name):
            return self._sources_of_name(expression.id, scope, steps - 1)
        if isinstance(expression, ast.Call):
            called = self._sources(expression.func, scope, steps - 1)
            if called:  # what a formula is given is not where the prediction comes from
                return called
            if inner := self._entered(expression, scope):
                return _one_of([self._sources(value, inner, steps // 2) for value in _returned(inner.function)])
        if isinstance(expression, ast.IfExp):
            return _one_of([self._sources(part, scope, steps - 1) for part in (expression.body, expression.orelse)])
        if isinstance(expression, ast.Dict):
            return _one_of([self._sources(value, scope, steps - 1) for value in expression.values])
        return frozenset().union(
            *(self._sources(child, scope, steps - 1) for child in ast.iter_child_nodes(expression))
        )

    def _sources_of_name(self, name: str, scope: Scope, steps: int) -> frozenset[str]:
        if name in scope.given and name not in scope.assigned:
            expression, caller = scope.given[name]
            return self._sources(expression, caller, steps)
        values = scope.assigned.get(name) or scope.file.constants.get(name, [])
        found = []
        for value in values:
            parts = self._sources(_unpacked(value), scope, steps // 2)
            found.append(UNSURE if value.each and len(parts) > 1 else parts)
        return _one_of(found)

    def _patterns(self, expression: ast.expr, scope: Scope, steps: int = 8) -> list[str]:
        """Regular expressions for what a text may be."""
        if steps <= 0:
            return [ANY]
        if isinstance(expression, ast.Constant):
            return [re.escape(str(expression.value))]
        if isinstance(expression, ast.FormattedValue) and not expression.format_spec:
            return self._patterns(expression.value, scope, steps - 1)
        if isinstance(expression, ast.JoinedStr):
            return _joined([self._patterns(part, scope, steps - 1) for part in expression.values])
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
            return _joined([self._patterns(part, scope, steps - 1) for part in (expression.left, expression.right)])
        if isinstance(expression, ast.IfExp):
            both = (expression.body, expression.orelse)
            return [text for part in both for text in self._patterns(part, scope, steps - 1)]
        if there := self._field(expression, scope):
            return self._patterns(*there, steps - 1)
        if isinstance(expression, ast.Name):
            name = expression.id
            if name in scope.given and name not in scope.assigned:
                return self._patterns(*scope.given[name], steps - 1)
            values = scope.assigned.get(name) or scope.file.constants.get(name, [])
            texts = [[ANY] if value.each else self._patterns(_unpacked(value), scope, steps - 1) for value in values]
            return [text for part in texts for text in part] or [ANY]
        return [ANY]


# ---- reading syntax trees ----


def _signs(pattern: str) -> int:
    """How many signs of a pattern are written out."""
    return len(pattern.replace(ANY, "").replace("\\", ""))


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    if len(call.args) > place and not any(isinstance(each, ast.Starred) for each in call.args[: place + 1]):
        return call.args[place]
    return next((each.value for each in call.keywords if each.arg == name), None)


def _assigned(nodes: Iterator[ast.AST] | list[ast.stmt]) -> dict[str, list[Value]]:
    """The values that names are given in some statements, loops and comprehensions."""
    found: dict[str, list[Value]] = {}

    def add(target: ast.expr, value: ast.expr, each: bool) -> None:
        if isinstance(target, ast.Name):
            found.setdefault(target.id, []).append(Value(value, each))
        elif isinstance(target, ast.Tuple):
            for place, part in enumerate(target.elts):
                if isinstance(part, ast.Name):
                    found.setdefault(part.id, []).append(Value(value, each, place))
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):  # put into a dictionary
            found.setdefault(f"{target.value.id}[]", []).append(Value(value, each))

    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                add(target, node.value, each=False)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value:
            add(node.target, node.value, each=False)
        elif isinstance(node, ast.For | ast.comprehension):
            add(node.target, node.iter, each=True)
    return found


def _unpacked(value: Value) -> ast.expr:
    """The part of a tuple that a name is given, where the tuple is written out, or both tuples of a condition."""
    written, place = value.expression, value.place
    if place is None or value.each:
        return written
    if isinstance(written, ast.IfExp):
        body, other = (_unpacked(Value(part, place=place)) for part in (written.body, written.orelse))
        return ast.IfExp(written.test, body, other)
    return written.elts[place] if isinstance(written, ast.Tuple) and place < len(written.elts) else written


@lru_cache(maxsize=10_000)  # a helper's code is read once for each of its callers
def _inside(code: ast.AST) -> list[ast.AST]:
    return list(ast.walk(code))


def _returned(function: ast.FunctionDef) -> list[ast.expr]:
    return [node.value for node in _inside(function) if isinstance(node, ast.Return) and node.value]


def _one_of(parts: list[frozenset[str]]) -> frozenset[str]:
    """Several possibilities: certain only if all are the same."""
    different = set(parts)
    return UNSURE if len(different) > 1 else different.pop() if different else frozenset()


def _joined(parts: list[list[str]]) -> list[str]:
    """Every way to put the parts of a text together, if there are not too many."""
    texts = [""]
    for part in parts:
        texts = [text + more for text in texts for more in part]
        if len(texts) > MOST:
            return [ANY]
    return texts


def _fields(node: ast.ClassDef) -> list[str]:
    """The fields of a dataclass in their order."""
    return [
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
