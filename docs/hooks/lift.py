"""The lifts of docs/lift as differences to the loop on one device, made from the files whenever the page is built."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

BASE = "one_device"
# Of what a lift is the next step, where that is not one device.
STEP_FROM = {"checkpoints": "zero3", "zero3_tensor_parallel": "zero3"}
TITLES = {
    "zero3": "ZeRO-3",
    "tensor_parallel": "tensor parallelism",
    "ring_attention": "ring attention",
    "pipeline": "a pipeline",
    "experts": "experts",
    "zero3_tensor_parallel": "ZeRO-3 × tensor parallelism",
    "all_of_it": "a pipeline × data × context × tensor parallelism, ZeRO-1, recomputation",
    "recomputation": "recomputation",
    "muon": "Muon on shards",
    "checkpoints": "checkpoints",
}


def code(folder: Path, name: str) -> list[str]:
    """A lift's lines, without its docstring."""
    text = (folder / f"{name}.py").read_text("utf-8")
    return text.splitlines()[ast.parse(text).body[0].end_lineno :]


def difference(folder: Path, name: str) -> list[str]:
    """What a lift changes, as a diff with two lines around each change."""
    lines = difflib.unified_diff(code(folder, STEP_FROM.get(name, BASE)), code(folder, name), n=2, lineterm="")
    return ["@@" if line.startswith("@@") else line for line in [*lines][2:]]


def added(folder: Path, name: str) -> tuple[int, int]:
    """How many lines of the loop are new or changed, and how many imports, without the start and end of ranks."""
    text = (folder / f"{name}.py").read_text("utf-8")
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {line for node in imports for line in text.splitlines()[node.lineno - 1 : node.end_lineno]}
    new = [line[1:] for line in difference(folder, name) if line.startswith("+") and line[1:].strip()]
    new = [line for line in new if "process_group()" not in line]
    known = sum(line in imported for line in new)
    return len(new) - known, known


def section(folder: Path, name: str) -> str:
    """A lift's counts, its command and its diff."""
    base = STEP_FROM.get(name, BASE)
    lines, imports = added(folder, name)
    command = (ast.get_docstring(ast.parse((folder / f"{name}.py").read_text("utf-8"))) or "").split("`")[1]
    diff = "\n".join(difference(folder, name))
    files = f"from [{base}.py](lift/{base}.py) to [{name}.py](lift/{name}.py)"
    head = f"{lines} line{'s' * (lines != 1)} and {imports} of imports, {files}:"
    return f"{head}\n\n```diff\n{diff}\n```\n\n```sh\n{command}\n```\n"


def table(folder: Path) -> str:
    """All lifts, each with its lines."""
    rows = ["| your Llama with | lines of yours | and imports | file |", "|---|---:|---:|---|"]
    for name, title in TITLES.items():
        lines, imports = added(folder, name)
        further = f", after {TITLES[STEP_FROM[name]]}" if name in STEP_FROM else ""
        rows.append(f"| {title}{further} | {lines} | {imports} | [{name}.py](lift/{name}.py) |")
    return "\n".join(rows) + "\n"


def file(folder: Path, name: str) -> str:
    """A whole file, folded."""
    text = "\n".join(f"    {line}".rstrip() for line in (folder / f"{name}.py").read_text("utf-8").splitlines())
    return f'??? quote "The whole file: docs/lift/{name}.py"\n\n    ```python\n{text}\n    ```\n'


def places(folder: Path) -> dict[str, str]:
    """The places `<!-- site:NAME -->` of the page."""
    found = {f"lift-{name}": section(folder, name) for name in TITLES}
    return found | {"lift": table(folder), **{f"lift-file-{name}": file(folder, name) for name in ("llama", BASE)}}
