"""The trainer's command line: what to train, where, and whether only to plan it. Imports no torch.

A layout that does not fit, and a run that would be overwritten, are refused here, before any rank is started.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, field, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_type_hints

import tyro

from minitrain.checkpointing.full import hugging_face
from minitrain.comm.terminal import complain
from minitrain.comm.torchrun import given_ranks, speaks
from minitrain.composition.presets import LARGE
from minitrain.composition.settings import Layout, Model, Run, Settings, Steps, check, check_trained
from minitrain.data.shares import vocabulary_of
from minitrain.trainer import config
from minitrain.trainer.launch import launch, refuse


@dataclass(frozen=True)
class Start:
    """Where it runs.

    Attributes:
        ranks: Ranks to start on this machine; if not given, as many as the layout takes. Not with torchrun.
        device: auto takes a GPU where there is one; ranks share GPUs where there are fewer.
        rehearse: nccl: run as on GPUs, on CPUs where there are none, and replay communication under NCCL's rules.
        timeout: Seconds without any progress after which ranks that wait for each other are given up.
        supervise: When a rank fails, start all again from the newest checkpoint; give up after three failures in a row
            at one step.
        blocking_wait: With NCCL, let the CPU stand still wherever a rank waits for others. A rank that waits forever
            then says in which line, while otherwise NCCL ends it; but the GPU gets its work later.
        share_communicators: With NCCL, let the groups of all axes share memory and a stream. Takes less memory, but
            messages of two axes no longer travel at the same time.
    """

    ranks: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    rehearse: Literal["nccl"] | None = None
    timeout: float = 300.0
    supervise: bool = False
    blocking_wait: bool = False
    share_communicators: bool = False


@dataclass(frozen=True)
class Plan:
    """Plan, and do not train.

    Attributes:
        dry_run: Print what ranks would hold, send and wait for, and how long a step and a training would take; start
            none.
        tokens: Tokens to train on.
        flops: Operations that a rank could do in a second; 312e12 is an A100 in bfloat16.
        utilization: Part of them that serves the model, as model FLOP utilization (MFU): operations that recomputation
            does again take time and are not counted. The tables show hardware FLOP utilization (HFU), too, which counts
            them.
    """

    dry_run: bool = False
    tokens: float = 300e9
    flops: float = 312e12
    utilization: float = 0.4


@dataclass(frozen=True)
class Command:
    """Train a GPT on real text, in any layout of ranks.

    These options are set often; --help all has all, --help GROUP one group's.

    Attributes:
        config: Read settings from this file, such as the run.toml of a run; options given here win.
    """

    config: str | None = None
    start: Start = Start()
    model: Model = Model()
    layout: Layout = Layout()
    steps: Steps = Steps()
    run: Run = Run()
    plan: Plan = Plan()


# Of each group, the options that are set most often: those that `--help` shows.
COMMON = {
    "start": "ranks",
    "model": "preset layers hidden heads positions",
    "layout": "dp pp tp ep cp zero microbatches recompute",
    "steps": "data steps batch optimizer lr warmup dtype",
    "run": "name save_every resume",
    "plan": "dry_run",
}


def main(loop: str, arguments: list[str] | None = None) -> NoReturn:
    """Run the command line, and end the program with its status. Every rank calls the `train` of the module `loop`."""
    sys.exit(run(loop, arguments))


def run(loop: str, arguments: list[str] | None = None) -> int:
    """As `main`; returns the exit status."""
    try:
        command = read(arguments)
        settings = Settings(_with_vocabulary(command), command.layout, command.steps, command.run)
        # A plan may be for more ranks than torchrun has started.
        given = None if command.plan.dry_run else given_ranks()
        ranks = _ranks(command, given)
        check(settings.model, settings.layout, settings.steps, ranks)
        # Before folders and files are looked at, none of which a plan needs.
        if command.plan.dry_run:
            from minitrain.planning.full import plan_tables

            plan_tables.show(settings, command.plan.tokens, command.plan.flops, command.plan.utilization)
            return 0
        check_trained(settings.model)
        if settings.model.preset in LARGE and given is None:
            raise ValueError(f"preset={settings.model.preset} is larger than a machine; --dry-run plans it")
        refuse(settings)
        if given is not None:
            _check_restarts(command)
    except (ValueError, OSError) as error:
        return refused(error)
    start = command.start
    # Ranks inherit the environment of this process.
    if start.blocking_wait:
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    if start.share_communicators:
        os.environ["NCCL_COMM_SPLIT_SHARE_RESOURCES"] = "1"
    return launch(settings, loop, ranks, start.device, start.timeout, start.rehearse, start.supervise)


def _with_vocabulary(command: Command) -> Model:
    """The model, with the vocabulary of the data if it was told none."""
    model, preset = command.model, command.model.sizes.vocabulary
    if model.vocabulary is None:
        size = vocabulary_of(command.steps.data, command.steps.mix, preset)
        return model if size == preset else replace(model, vocabulary=size)
    return model


def read(arguments: list[str] | None) -> Command:
    """The command line, with the values of its file where it gives none; a ValueError says why that does not fit."""
    # First alone: the file's values are the defaults of all other options.
    before = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--config", "--load", "--preset"):
        before.add_argument(option, nargs="?")
    before.add_argument("-h", "--help", nargs="?", const="common")
    given = before.parse_known_args(arguments)[0]
    default = config.read(Path(given.config), Command(config=given.config)) if given.config else Command()
    load = Path(given.load or default.run.load or "")
    # A folder of weights tells what model they are; with a preset, or in a settings file, the user does.
    if given.preset is None and default.model == Model() and str(load) != "." and load.is_dir():
        if (file := load / hugging_face.CONFIG).is_file():
            default = replace(default, model=Model(**hugging_face.options(file)))
    about: dict[str, Any] = {"prog": "python -m minitrain.train", "args": arguments, "default": default}
    # A file can turn on what the command line turns off again, so that each flag has both words.
    settled = (tyro.conf.OmitArgPrefixes, *([] if given.config else [tyro.conf.FlagCreatePairsOff]))
    if given.help:
        about |= {"default": _explained(given.help, default), "args": ["--help"]}
    return tyro.cli(type(about["default"]), **about, config=settled)


def _explained(which: str, command: Command) -> Any:
    """The command with the options that `--help` is to show: COMMON, all, or those of one group."""
    if which not in ("common", "all", *COMMON):
        raise ValueError(f"help={which!r} is unknown; use --help all, or a group of {', '.join(COMMON)}")

    def only(holder: Any, values: dict[str, Any]) -> Any:
        hints = get_type_hints(type(holder), include_extras=True)
        kept = [
            (name, type(value) if is_dataclass(value) else hints[name], field(default=value))
            for name, value in values.items()
        ]
        return make_dataclass(type(holder).__name__, kept, frozen=True, namespace={"__doc__": holder.__doc__})()

    groups = {name: getattr(command, name) for name in COMMON}
    if which == "all":
        return command
    if which in COMMON:
        return only(command, {which: groups[which]})
    often = {name: only(of, {each: getattr(of, each) for each in COMMON[name].split()}) for name, of in groups.items()}
    return only(command, {"config": command.config, **often})


def refused(error: ValueError | OSError) -> int:
    """Say once what is wrong with the command line; returns the exit status."""
    if speaks():
        complain(error)
    return 2


def _check_restarts(command: Command) -> None:
    """torchrun starts a command again as it is, so that has to go on from checkpoints, and torchrun supervises it."""
    if command.start.supervise:
        raise ValueError("supervise=True starts ranks of its own; with torchrun use its --max-restarts in place of it")
    # Its TORCHELASTIC_RESTART_COUNT cannot tell a restart: machines count their own failures only.
    most = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if most and not command.run.resume:
        raise ValueError(
            f"torchrun would restart this run up to {most} times, each time from its beginning: add --resume, which "
            "begins where there is no checkpoint yet, or use --max-restarts 0"
        )
    if most and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ValueError(
            f"torchrun would restart this run up to {most} times, and each time its ranks would find the addresses of "
            "dead ones in the store that it shares with them: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun, "
            "with --standalone or --rdzv-backend c10d, or use --max-restarts 0"
        )


def _ranks(command: Command, given: int | None) -> int:
    asked = command.start.ranks
    if asked is not None and asked < 1:
        raise ValueError(f"ranks={asked} must be at least 1")
    if given is not None:
        # torchrun's ranks run already, and no command can change how many they are.
        if asked not in (None, given):
            raise ValueError(f"ranks={asked} does not match the {given} ranks that torchrun started; leave it out")
        return given
    return command.layout.ranks if asked is None else asked
