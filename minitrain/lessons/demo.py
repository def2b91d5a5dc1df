"""The demo runner: one file, two ways to start it.

`torchrun --nproc-per-node 4 -m minitrain.collectives.ring` starts the ranks from outside, on any number of machines;
`python -m minitrain.collectives.ring --ranks 4` starts them itself, on this one. Both end in `perform`, on every rank,
which runs the demo and prints its claims as a table.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NoReturn, get_type_hints

import tyro

from minitrain.comm.control import gather_objects, leave_all
from minitrain.comm.pictures import save_figure
from minitrain.comm.terminal import reader_has_closed
from minitrain.comm.timeline import trace_events
from minitrain.comm.torchrun import end_with_torchrun, given_ranks, speaks
from minitrain.comm.world import World, describe
from minitrain.lessons import plays
from minitrain.lessons.claims import Claim, Row, merge, number, print_rows, write_json
from minitrain.lessons.listing import NUMBERS, after, lesson_of, technique_of
from minitrain.watch.rehearsal import Rehearsal

Demo = Callable[..., list[Claim]]
NCCL = 'NCCL User Guide, "Using multiple NCCL communicators concurrently" and "Point-to-point communication"'


@dataclass(frozen=True)
class Output:
    """The files to write, as the options of these names say."""

    figure: Path | None = None
    trace: Path | None = None
    json: Path | None = None


def demo_of(technique: str | ModuleType) -> Demo:
    """The demo of a technique, which is in its lesson: of `minitrain.zero.stage1`, in `minitrain.lessons.zero.stage1`.

    Args:
        technique: The technique's module, or its name.

    Raises:
        ModuleNotFoundError: It has no lesson.
    """
    name = technique if isinstance(technique, str) else technique.__name__
    return import_module(lesson_of(name)).demo


def run(demo: Demo | str | ModuleSpec | None) -> NoReturn:
    """Run a demo from the command line; exit status 0 when every claim holds on every rank, else 1.

    The command line is made from the demo's signature: `demo(world, elements: int = 1 << 20)` has an option
    `--elements`, explained by the demo's docstring, in addition to the options that every demo has.

    Args:
        demo: Returns the claims; or the name or the `__spec__` of a technique, for the demo of its lesson.

    Raises:
        SystemExit: At the end; or a technique was started as a file, which has no `__spec__`.
    """
    if demo is None:
        file = Path(sys.argv[0]).resolve().relative_to(Path(__file__).parents[2]).with_suffix("")
        raise SystemExit(f"{sys.argv[0]} is part of a package; start it so: python -m {'.'.join(file.parts)}")
    demo = demo.name if isinstance(demo, ModuleSpec) else demo
    demo = demo_of(demo) if isinstance(demo, str) else demo
    module, program = _started(demo)
    hints = get_type_hints(demo)
    own = list(inspect.signature(demo).parameters.values())[1:]  # without the world
    own = [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in own]
    options = tyro.cli(_command(inspect.getdoc(demo) or "", own, tuple(_OPTIONS)), prog=program)
    where = {name: options.pop(name) for name in ("ranks", "device", "timeout", "rehearse")}
    if (page := options.pop("play")) is not None:
        sys.exit(plays.write(technique_of(module), page, where["ranks"]))
    output = Output(options.pop("figure"), options.pop("trace"), options.pop("json"))
    if problem := _make_room(output):
        if speaks():
            print(problem, file=sys.stderr)
        sys.exit(2)
    arguments = (module, demo.__name__, options, output)
    sys.exit(launch(perform, **where, arguments=arguments))


def _started(demo: Demo) -> tuple[str, str]:
    """The module in which ranks find a demo, and how it was started."""
    if demo.__module__ != "__main__":
        return demo.__module__, f"python -m {technique_of(demo.__module__)}"
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name, f"python -m {main.__spec__.name}"
    file = getattr(main, "__file__", None)
    if file is None:
        raise SystemExit("a demo must be in a file, which ranks can import")
    return Path(file).stem, f"python {file}"  # a script's folder is where modules are looked for


def _make_room(output: Output) -> str:
    """Make the folders of the files that will be written; returns what is wrong with them, before anything is run."""
    if output.figure and output.figure.suffix not in (".svg", ".png", ".pdf"):
        return f"--figure {output.figure}: a picture can be .svg, .png or .pdf"
    for path in filter(None, (output.figure, output.trace, output.json)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return f"{path} cannot be written: {error}"
    return ""


_MaybePath = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]

# The options that every demo has, in addition to its own: type, default, explanation.
_OPTIONS = {
    "ranks": (
        Annotated[int | None, tyro.conf.arg(metavar="INT")],
        None,
        "Ranks to start on this machine, 4 if not given. Under torchrun leave it out.",
    ),
    "device": (
        Literal["auto", "cpu", "cuda"],
        "auto",
        "Where tensors live. auto takes a GPU where there is one; ranks share GPUs where there are fewer.",
    ),
    "rehearse": (
        Literal["nccl"] | None,
        None,
        "nccl: run as on GPUs, on CPUs where there are none, and replay communication under NCCL's rules.",
    ),
    "timeout": (float, 60.0, "Seconds after which a communication that did not happen is an error."),
    "figure": (_MaybePath, None, "Save the lesson's picture here (.svg, .png or .pdf)."),
    "trace": (_MaybePath, None, "Save the timeline of all ranks here, for https://ui.perfetto.dev."),
    "json": (_MaybePath, None, "Save the claims here."),
    "play": (_MaybePath, None, "Save a page here, on which one steps through the small form, and run no demo."),
}


def _command(text: str, own: list[inspect.Parameter], common: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    """A function for tyro to make a command line of: with this docstring, its own parameters, and common options."""

    def command(**options: Any) -> dict[str, Any]:
        return options

    parameters = [*own]
    for name in common:
        kind, default, _ = _OPTIONS[name]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    listed = "".join(f"\n    {name}: {_OPTIONS[name][2]}" for name in common)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = text + ("" if "\nArgs:" in text else "\n\nArgs:") + listed
    return command


def launch(
    function: Callable[..., bool],
    ranks: int | None,
    device: str,
    timeout: float,
    arguments: tuple,
    rehearse: str | None = None,
) -> int:
    """Call `function(world, *arguments)` on every rank, torchrun's or our own; returns the exit status.

    Raises:
        SystemExit: With a message, for invalid options.
    """
    started = given_ranks()
    if started is not None:
        if ranks not in (None, started):
            raise SystemExit(f"--ranks {ranks} does not match the {started} ranks that torchrun started; leave it out")
        return _perform_under_torchrun(function, device, timeout, arguments, rehearse)
    if ranks is not None and ranks < 1:
        print(f"--ranks {ranks} cannot be started; use a whole number from 1 on", file=sys.stderr)
        return 2
    from minitrain.ranks.processes import forkserver
    from minitrain.ranks.ranks import Ranks, RanksError

    started = 4 if ranks is None else ranks
    try:
        forkserver(fork=True)  # torch and the demo are loaded here: the ranks need not import them again
        with Ranks(started, device=device, timeout=timeout, rehearse=rehearse) as pool:
            held = pool.run(function, *arguments)
            return 0 if all(held) else 1
    except (ValueError, RanksError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except BrokenPipeError:
        return reader_has_closed()
    except KeyboardInterrupt as stopped:  # where the ranks were, if they were at work
        print(stopped, file=sys.stderr)
        return 130


def _perform_under_torchrun(
    function: Callable[..., bool], device: str, timeout: float, arguments: tuple, rehearse: str | None
) -> int:
    end_with_torchrun()  # nobody would read what its ranks say, nor end them
    try:
        world = World.start(device=device, timeout=timeout, rehearse=rehearse)
        holds = function(world, *arguments)
        world.stop()
        return 0 if holds else 1
    except Exception as error:
        # A rank whose partner died learns of it from a broken connection. The partner's own error matters more:
        # torchrun ends this rank while it waits here.
        if "Connection" in str(error) or "connection" in str(error):
            time.sleep(3)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # leaving the group in order would wait for ranks that may never come


def perform(world: World, module: str, name: str, options: dict[str, Any], output: Output) -> bool:
    """Run one demo on this rank; rank 0 prints the table and writes the files. Whether all claims hold on all ranks."""
    demo, technique = getattr(import_module(module), name), technique_of(module)
    about_demo = (inspect.getdoc(demo) or "").split("\n")[0]
    if world.rank == 0:
        print(f"{technique} on {setup_of(world)}")
        print(about_demo)
        if world.size == 1:
            print("One rank divides nothing: for more, --ranks 4, or torchrun --nproc-per-node 4.")
        print(flush=True)
    with world.timeline.watching() if output.trace else nullcontext():
        rows, costs = play(world, demo, options)
    spans = world.timeline.gather().spans
    if world.rank == 0:
        print_rows(rows)
        if costs:
            print("\nmeasured here, not claimed:")
            for what, value, unit in costs:
                print(f"  {what}: {number(float(f'{value:.3g}'))} {unit}")
        print(f"\n{closing(technique, rows, world.draw is not None and output.figure is None)}")
        _write(world, rows, spans, output, f"{technique}: {about_demo}")
    return not any(row.holds is False for row in rows)


def setup_of(world: World) -> str:
    """On what a run runs: "4 ranks, gloo on CPU, torch 2.13.0"."""
    about = describe(world)
    ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
    return f"{ranks}, {about['backend']} on {about['device']}, torch {about['torch']}"


def closing(technique: str, rows: list[Row], picture: bool) -> str:
    """The last line of a demo: how many claims hold, and where to go on.

    Args:
        technique: Its module.
        rows: Its claims.
        picture: Whether it has a picture that was not asked for.
    """
    tried = [row for row in rows if row.holds is not None]
    hold = sum(row.holds is True for row in tried)
    parts = [f"{hold} of {len(tried)} claims hold" if len(tried) != 1 else f"{hold} of 1 claim holds"]
    chapter, _, name = technique.removeprefix("minitrain.").partition(".")
    parts += [f"chapter {NUMBERS[chapter]}"] if chapter in NUMBERS else []
    parts += [f"picture: --figure {name}.svg"] if picture else []
    following = after(technique)
    parts += [f"next: python -m {following}"] if following else []
    return " · ".join(parts)


def play(world: World, demo: Demo, options: dict[str, Any]) -> tuple[list[Row], list[tuple[str, float, str]]]:
    """Run a demo and bring the claims of all ranks together; returns the rows, and what it cost on rank 0."""
    world.costs, world.draw = [], None
    module = technique_of(demo.__module__)
    claims = demo(world, **options)
    everyone = gather_objects(claims)
    leave_all()  # the groups that the demo has made, or their threads would run during the next one
    if world.rehearsal is not None:
        rule = _rehearsed(world, world.rehearsal)
        # Without GPUs memory and copies differ from those on them, since both memories are one here.
        gpu = world.device.type == "cuda"
        everyone = [[*(claim for claim in claims if gpu or claim.how == "compared"), rule] for claims in everyone]
    return merge(module, everyone), world.costs


def _rehearsed(world: World, rehearsal: Rehearsal) -> Claim:
    """The claim of every demo that is rehearsed."""
    summary, broken = str(rehearsal), rehearsal.check()
    if world.rank == 0:
        print(summary, *broken, sep="\n", end="\n\n")
    return Claim("rules of NCCL that this run would break", "0", 0, len(broken), source=NCCL)


def _write(world: World, rows: list[Row], spans: list, output: Output, title: str) -> None:
    written = []
    if output.json:
        write_json(output.json, rows, **describe(world))
        written.append(output.json)
    if output.trace and not spans:
        print(f"nothing was sent or timed; {output.trace} was not written", file=sys.stderr)
    elif output.trace:
        output.trace.write_text(json.dumps({"traceEvents": trace_events(spans)}), encoding="utf-8")
        written.append(output.trace)
    if output.figure and world.draw is None:
        print(f"this demo has no picture; {output.figure} was not written", file=sys.stderr)
    elif output.figure and world.draw is not None:
        figure = world.draw()
        if not figure.get_suptitle() and not any(axes.get_title() for axes in figure.axes):
            figure.suptitle("\n".join(textwrap.wrap(title, 90)), fontsize=9)
        save_figure(figure, output.figure)
        written.append(output.figure)
    if written:
        print(f"written: {', '.join(map(str, written))}")
