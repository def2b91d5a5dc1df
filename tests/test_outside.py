"""Nothing from outside the process tree is decoded by what could run code."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "minitrain").rglob("*.py"), *(ROOT / "tutorials").rglob("*.py")])

# Modules whose reading runs code, and what reads: everything of these that is not listed here only writes.
READERS = ("load", "loads", "Unpickler")
MODULES = ("pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "copyreg", "yaml")
BUILTINS = ("eval", "exec", "__import__")
# torch's and Python's own readers of pickles, and shells.
FORBIDDEN = ("Listener", "Client", "SharedMemory", "BaseManager", "system", "popen", "mktemp")

# (file, function) -> why what it decodes comes from the process tree, or cannot hold code. Each is used.
PIPE = "a pipe without a name, between the program and its own ranks"
SEALED = "sealed by a rank of this run"
ALLOWED = {
    ("comm/control.py", "gather_objects"): SEALED,
    ("pipeline_parallel/full/shapes.py", "Shapes._hear"): SEALED,
    ("ranks/worker.py", "Worker.serve"): PIPE,
    ("ranks/worker.py", "Worker.run"): PIPE,
    ("ranks/worker.py", "Worker.value"): PIPE,
    ("ranks/worker.py", "Worker.cell"): PIPE,
    ("ranks/processes.py", "Processes.receive"): PIPE,
    ("ranks/forkserver.py", "Forkserver.start"): PIPE,
    ("ranks/forkserver.py", "Rank.exitcode"): PIPE,
    ("ranks/forkserver.py", "receive"): PIPE,
    ("ranks/forkserver.py", "begin"): "a file in a folder that only this user can enter, made by mkdtemp",
    ("ranks/sending.py", "_FromRanks"): PIPE,
    ("ranks/sending.py", "_named"): PIPE,
    ("lessons/resilience/child.py", "Peers.__init__"): "only bytes are sent and received, and they are JSON",
    ("checkpointing/full/shards.py", "_Unpickler"): "knows only the classes of a list of tensors",
    ("checkpointing/full/shards.py", "Reader.read_metadata"): "reads by `_Unpickler`",
}


def name_of(node: ast.expr) -> str:
    """ "pickle.loads" of the expression that says so."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def decodes(node: ast.AST) -> str:
    """What a node of a program uses that could run code which it reads; "" for nothing."""
    if isinstance(node, ast.ImportFrom) and node.module in MODULES:
        return f"from {node.module} import"
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = name_of(node)
        home, _, last = name.rpartition(".")
        if home in MODULES and last in READERS or last.endswith(("_object", "_object_list")) or last in FORBIDDEN:
            return name
        return name if not home and last in BUILTINS else ""
    if not isinstance(node, ast.Call):
        return ""
    name, given = name_of(node.func), {each.arg: getattr(each.value, "value", None) for each in node.keywords}
    if name == "torch.load" and given.get("weights_only") is not True:
        return "torch.load without weights_only=True"
    if given.get("weights_only", True) is not True or given.get("allow_pickle") or given.get("shell"):
        return name
    if name.endswith(".recv") and not node.args:  # of multiprocessing's connections, which unpickle
        return name
    return "_Unpickler" if name == "_Unpickler" else ""


def found(text: str, file: str = "") -> dict[tuple[str, str], list[str]]:
    """All such uses, by file and function."""
    uses: dict[tuple[str, str], list[str]] = {}

    def visit(node: ast.AST, where: tuple[str, ...]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            where = (*where, node.name)
        if use := decodes(node):
            uses.setdefault((file, ".".join(where)), []).append(use)
        for child in ast.iter_child_nodes(node):
            visit(child, where)

    visit(ast.parse(text), ())
    return uses


def test_nothing_from_outside_can_run_code():
    uses = {}
    for path in SOURCES:
        uses |= found(path.read_text("utf-8"), path.relative_to(ROOT).as_posix().removeprefix("minitrain/"))
    assert {place: use for place, use in uses.items() if place not in ALLOWED} == {}
    assert ALLOWED.keys() - uses.keys() == set(), "listed, but used no more"
