"""The list of demos, made by reading the files: nothing is imported, so it works where torch is not installed."""

from __future__ import annotations

import ast
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from minitrain.comm.terminal import reader_has_closed

# Chapters in reading order, as the notebooks number them, and the demos of each in the order of its notebooks. Those
# without a notebook have their place as well.
CHAPTERS = {
    "matrix_product": "first_messages by_data by_columns by_rows to_everyone memory",
    "collectives": "naive ring tree halving hierarchical native",
    "data_parallel": "naive bucketed overlapped accumulation local_sgd hierarchical_sgd diloco",
    "roofline": "peaks fusion flops overlap scaling calculator",
    "zero": (
        "stage1 stage2 stage3 hybrid partitioned_checkpoints constant_buffers defragmentation step_in_backward "
        "offload parameter_offload"
    ),
    "recomputation": "checkpoint every_kth selective binarized sparse_rows delayed_precision activation_offload",
    "precision": "formats master_weights loss_scaling accumulate mixed fp8 quantized_gradients",
    "optimizers": "adam adafactor sm3 adam8bit lars lamb scaling muon",
    "tensor_parallel": "mappings linear attention vocab_parallel cross_entropy gpt dropout_rng clip_grad_norm",
    "sequence_parallel": "mappings linear megatron",
    "context_parallel": "online_softmax ring_attention zigzag ulysses all_gather",
    "pipeline_parallel": (
        "gpipe one_f_one_b executor weight_gradients splitting "
        "without_flush no_stashing pipedream vertical_sync two_buffered"
    ),
    "mixture_of_experts": (
        "switch noisy_top_k gshard expert_choice layer all_to_all expert_parallel moe_gpt "
        "bias_balanced node_limited z_loss dropless shared_experts"
    ),
    "composition": "three_axes layout model step",
    "planning": "profile partition pipedream_planner memory_model search halving plan",
    "checkpointing": "atomic checkpoint resharding position asynchronous flash interval",
    "resilience": "supervisor exit_codes first_failure heartbeat stuck pairs ordered_sum regroup elastic",
    "craft": "loss_by_source probes spikes rewind schedules first_difference engine",
    "trainer": "trainer",
    "parameter_server": "synchronous asynchronous",
    "recommender": "embedding hybrid asynchronous serving",
    "inference": "kv_cache latent_attention pipeline_decode",
}
NUMBERS = {name: f"{number:02}" for number, name in enumerate(each for each in CHAPTERS if each != "trainer")}
PROGRAMS = {
    "minitrain.train": "Trains a GPT on real text, in any layout of ranks; --dry-run only plans it.",
    "minitrain.plan": "Finds the best layouts for a model and some GPUs.",
    "minitrain.generate": "Continues a text with the weights of a run.",
    "minitrain.evaluate": "The loss of a run's weights on held-out text.",
    "minitrain.export": "Writes a run's weights to a safetensors file, also as Hugging Face has them.",
    "minitrain.compare": "Finds the first step and the first tensor in which two runs differ.",
    "minitrain.prepare": "Turns texts into shards of tokens that are mapped into memory.",
    "minitrain.tour": "Runs every demo and trains a small GPT, in 4 to 6 minutes.",
    "minitrain.benchmarks": "Compares these modules with what one would use instead.",
    "minitrain.first_hour": "Finds out on GPUs whether all of this works there, and how fast; writes a report.",
}
USAGE = (
    "python -m minitrain [WORD …]   lists programs and demos, or those about WORD",
    "python -m MODULE --help        explains the options of one",
    "python -m MODULE --ranks 4     runs a demo on ranks of its own",
    "torchrun --nproc-per-node 4 -m MODULE",
    "--figure x.svg, --trace x.json  write the picture and the timeline of a demo",
    "",
)
SYNONYMS = {  # other words for what a module is about
    "minitrain.collectives": "allreduce",
    "minitrain.data_parallel.overlapped": "ddp",
    "minitrain.zero.stage1": "zero_1",
    "minitrain.zero.stage2": "zero_2",
    "minitrain.zero.stage3": "zero_3 fsdp",
    "minitrain.zero.step_in_backward": "lomo fused",
    "minitrain.roofline.flops": "mfu",
}


def main(words: Sequence[str]) -> int:
    """Print the list, all of it or what fits the words; returns the exit status."""
    try:
        print("\n".join(lines([word for word in words if word not in ("-h", "--help")])), flush=True)
    except LookupError as error:
        print(error.args[0], file=sys.stderr)
        return 1
    except BrokenPipeError:
        return reader_has_closed()
    return 0


def lines(words: Sequence[str] = (), width: int | None = None) -> list[str]:
    """The list in lines: how to use it, the programs, and the demos by chapter.

    Args:
        words: Only modules with all of them in their name, their description, or the number and name of their chapter.
        width: Of a line; None: the terminal's, between 60 and 100.

    Raises:
        LookupError: There is none; names similar ones.
    """
    every = {"The programs": [*PROGRAMS.items()]}
    for module, what in demos():
        chapter = module.split(".")[1]
        every.setdefault(f"{NUMBERS.get(chapter, '')} {chapter}".strip(), []).append((module, what))
    wanted = [word.replace("-", "_") for word in " ".join(words).lower().split()]
    begins = [re.compile(rf"(?<![a-z]){re.escape(word)}") for word in wanted]
    found = {}
    for title, rows in every.items():
        if fits := [row for row in rows if all(word.search(f"{title} {_about(row)}") for word in begins)]:
            # A module that has the words in its name comes before one that only speaks of them.
            found[title] = sorted(fits, key=lambda row: not all(word in row[0] for word in wanted))
    if not found:
        names = [module.rpartition(".")[2] for rows in every.values() for module, _ in rows]
        near = get_close_matches("_".join(wanted).rpartition(".")[2], names, 2, 0.6)
        cure = f"did you mean {' or '.join(near)}?" if near else "python -m minitrain lists all"
        raise LookupError(f"no program and no demo is about {' '.join(words)!r}; {cure}")
    width = width or min(100, max(60, shutil.get_terminal_size().columns))
    shown = [] if words else [*USAGE]
    for title, rows in found.items():
        shown.append(title)
        for module, what in rows:
            shown += [
                f"  {module}",
                *textwrap.wrap(what, width, initial_indent="      ", subsequent_indent="      "),
            ]
        shown.append("")
    return shown[:-1]


def _about(row: tuple[str, str]) -> str:
    """What is searched for words: name, description and other words for it, in small letters."""
    other = " ".join(words for name, words in SYNONYMS.items() if row[0].startswith(name))
    return " ".join([*row, other]).lower().replace("-", "_")


def after(module: str) -> str | None:
    """The demo that comes next in the course; None after the last one, and for modules that are in no chapter."""
    names = list(_sources())  # not `demos`, which parses them all
    place = names.index(module) + 1 if module in names else len(names)
    return names[place] if place < len(names) else None


@cache
def demos() -> tuple[tuple[str, str], ...]:
    """Every technique with a lesson, and the first line of its demo's docstring, in the order of the course."""
    found = []
    for module, source in _sources().items():
        function = ast.parse(source).body[0]
        assert isinstance(function, ast.FunctionDef)
        found.append((module, (ast.get_docstring(function) or "").split("\n")[0]))
    return tuple(found)


@cache
def _sources() -> dict[str, str]:
    """Every technique with a lesson, in the order of the course; and the lesson's source from its demo on."""
    lessons = Path(__file__).parent
    found = {}
    for chapter, names in CHAPTERS.items():
        place = {name: number for number, name in enumerate(names.split())}
        files = sorted((lessons / chapter).glob("*.py"))
        for path in sorted(files, key=lambda path: place.get(path.stem, len(place))):
            _, begins, rest = path.read_text(encoding="utf-8").partition("\ndef demo(")
            if begins:
                found[f"minitrain.{chapter}.{path.stem}"] = f"{begins}{rest}"
    return found


def lesson_of(technique: str) -> str:
    """The module of a technique's lesson, whichever of its forms is named: `minitrain.lessons.zero.stage1`."""
    return technique.replace("minitrain.", "minitrain.lessons.", 1).replace(".full.", ".", 1)


def technique_of(lesson: str) -> str:
    """The module that a lesson is about; any other module stays itself."""
    return lesson.replace("minitrain.lessons.", "minitrain.", 1)
