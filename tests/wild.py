"""Lists the names in other projects that *In the wild* mentions, by project, for the next check of them.

    python -m tests.wild                   every name, by project, and the notebooks that have it
    python -m tests.wild PROJECT FOLDER    those of one project that occur nowhere in a checkout of it

Projects rename things within months. A name that has gone is taken out or replaced, and when all of them have been
looked at, the month in the notebooks is changed: "Names in other projects are as of August 2026."
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

TUTORIALS = Path(__file__).parents[1] / "tutorials"
# As the notebooks write them; the parts of PyTorch that have names of their own count as PyTorch.
PROJECTS = (
    "Accelerate|apex|AReaL|bitsandbytes|BytePS|ByteRobust|DeepEP|DeepSeek|DeepSpeed|DLRM|DLRover|FBGEMM|fvcore|gloo|"
    "Horovod|HugeCTR|Hugging Face|JAX|Lightning Fabric|lm-evaluation-harness|MegaBlocks|Megatron-LM|MXNet|nanoGPT|NCCL|"
    "NVRx|OLMo|Petuum|PipeDream|ps-lite|PyTorch|SGLang|TensorFlow|TensorRT-LLM|torchao|torchft|torchgpipe|TorchRec|"
    "torchtitan|torchtune|Transformer Engine|Transformers|vLLM"
)
OF_PYTORCH = "DTensor|FSDP[12]?|torchrun"
TOKEN = re.compile(rf"`(?P<name>[^`]+)`|(?<![\w-])(?:(?P<project>{PROJECTS})|(?P<torch>{OF_PYTORCH}))(?![\w-])")
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
AS_OF = re.compile(rf"Names in other projects are as of ({MONTHS}) 20\d\d\.")
READ = {".py", ".md", ".rst", ".cpp", ".cc", ".h", ".cu", ".cuh", ".toml", ".json", ".yaml", ".sh"}


def section(notebook: Path) -> str:
    """*In the wild* of one notebook."""
    import nbformat  # takes seconds: not while tests are collected

    cells = nbformat.read(notebook, as_version=4).cells
    return next(cell.source for cell in cells if cell.source.startswith("## In the wild"))


def names(text: str) -> dict[str, list[str]]:
    """Project -> its names in the tables of a section.

    A name belongs to the last project before it in its field of the table, or in the head of the column, or in the
    first field of the row.
    """
    found: dict[str, list[str]] = defaultdict(list)
    heads: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            heads = []
            continue
        fields = [field.strip() for field in line.strip("|").split("|")]
        if not heads or set(line) <= set("|-: "):
            heads = heads or fields
            continue
        ours = heads.index("here") if "here" in heads else -1
        for number, field in enumerate(fields):
            if number <= ours:
                continue
            project = _named(heads[number]) or ("" if ours >= 0 else _named(fields[0]))
            for token in TOKEN.finditer(field):
                project = _named(token[0]) if token["name"] is None else project
                if (name := token["name"]) and not name.startswith("minitrain"):
                    whose = "PyTorch" if name.startswith(("torch", "dist.")) else project or "others"
                    found[whose] += [name] if name not in found[whose] else []
    return {project: each for project, each in found.items() if each}


def _named(text: str) -> str:
    """The last project that a text names, or nothing."""
    last = [token for token in TOKEN.finditer(text) if token["name"] is None][-1:]
    return (last[0]["project"] or "PyTorch") if last else ""


def everywhere() -> dict[str, dict[str, list[str]]]:
    """Project -> name -> the notebooks that have it."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for notebook in sorted(TUTORIALS.glob("[0-9]*.ipynb")):
        for project, each in names(section(notebook)).items():
            for name in each:
                found[project][name].append(notebook.stem.partition("_")[0])
    return found


def gone(project: str, folder: Path) -> list[str]:
    """Names of a project that occur in no file of a checkout, nor as the path of one.

    Of `--option value`, `f(x=1)` and `a.b.c` the option, f and c are looked for; an option also as the field of a
    dataclass from which programs make it.
    """
    files = [path for path in folder.rglob("*") if path.suffix in READ and path.is_file()]
    text = "\n".join(each for path in files for each in (str(path), path.read_text("utf-8", "replace")))
    lost = []
    for name in everywhere().get(project, {}):
        word = (re.findall(r"[\w/.-]*\w", name) or [name])[0].lstrip("-")
        if not any(each in text for each in (word, word.replace("-", "_"), word.rpartition(".")[2])):
            lost.append(name)
    return lost


def main(arguments: list[str]) -> int:
    """The command line; returns the exit status."""
    if len(arguments) == 2:
        lost = gone(arguments[0], Path(arguments[1]))
        print("\n".join(lost) or f"all names of {arguments[0]} occur there")
        return 1 if lost else 0
    for project, each in sorted(everywhere().items()):
        print(f"{project}\n" + "".join(f"    {name}    ({', '.join(where)})\n" for name, where in each.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
