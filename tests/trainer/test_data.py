"""Training on prepared text and on mixtures: the same in every layout, resumed in another one, and what is refused."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from minitrain.comm.control import gather_objects
from minitrain.composition.settings import Layout, Model, Run, Settings, Steps
from minitrain.data.mixture import Mixture
from minitrain.data.prepare import Options, prepare
from minitrain.data.text import VALIDATION_SHARE, place_of
from minitrain.data.tokenizer import Pairs
from minitrain.ranks.failures import RanksError
from minitrain.train import train
from minitrain.trainer import loaded, tools
from minitrain.trainer.trainer import Trainer
from tests.data.test_prepare import text
from tests.trainer.test_trainer import refused

MODEL = Model(layers=2, hidden=16, heads=2, positions=16, vocabulary=300)
STEPS = Steps(steps=4, batch=8, warmup=1, lr=1e-2, dtype="float64")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of byte pairs, and one of the same text with another tokenizer."""
    folder = tmp_path_factory.mktemp("prepared")
    for number in range(30):
        (folder / f"{number}.txt").write_text(text(number, 100), encoding="utf-8")
    (folder / "lines.jsonl").write_text('{"text": "one more"}\n' + '{"text": "more"}\n' * 50, encoding="utf-8")
    for name, vocabulary in (("pairs", 300), ("fewer", 290)):
        options = Options(str(folder), str(folder / f".{name}"), "bpe", vocabulary, validation=0.2, processes=1)
        prepare(options)
    prepare(Options(str(folder), str(folder / ".bytes"), validation=0.2, processes=1))
    return folder


def asked(folder: Path, data: str | list[str], layout: Layout | None = None, **changes) -> Settings:
    where = {"data": data} if isinstance(data, str) else {"mix": tuple(data)}
    run = Run(**{"runs": str(folder), "sample": 0, "evaluate_every": 0, **changes})
    return Settings(MODEL, layout or Layout(), replace(STEPS, **where), run)


def do(world, settings: Settings, stop_at: int | None = None):
    """A run: its losses, and which samples of which source all ranks have taken."""
    told: list[str] = []
    trainer = Trainer(
        world, settings, lambda: stop_at is not None and trainer.done >= stop_at, tell=lambda line: told.append(line)
    )
    taken: list[Counter[int]] = []
    trainer.samples = trainer.samples.samples  # a batch that is read ahead is not taken
    for source in trainer.samples.sources if isinstance(trainer.samples, Mixture) else [trainer.samples]:
        taken.append(Counter())

        def counted(samples, take=source.take, own=taken[-1]):
            numbers = list(samples)
            own.update(numbers)
            return take(numbers)

        source.take = counted
    status = train(trainer)
    place = trainer.training.axes.place
    mine = taken if place["pp"] == place["tp"] == place["cp"] == 0 else [Counter() for _ in taken]
    return (
        status,
        [report.loss for report in trainer.reports],
        [sum(each, Counter()) for each in zip(*gather_objects(mine), strict=True)],
        told,
    )


@pytest.mark.parametrize(
    ("before", "after"), ((Layout(dp=2), Layout(pp=2)), (Layout(tp=2), Layout(dp=2, zero=1, microbatches=2))), ids=str
)
def test_a_mixture_is_gone_on_with_in_another_layout(ranks, prepared, tmp_path, before, after):
    """In the middle of a block: every sample of every source once, and the losses of one device in one go."""
    data = [f"pairs=0.7:{prepared / '.pairs'}", f"again=0.3:{prepared / '.pairs'}"]
    whole = ranks(1).run(do, asked(tmp_path / "whole", data))[0]
    settings = asked(tmp_path / "parts", data, before)
    first = ranks(2).run(do, settings, 2)[0]
    resumed = replace(settings, layout=after, run=replace(settings.run, resume=True))
    second = ranks(2).run(do, resumed)[0]
    assert [*first[1], *second[1]] == pytest.approx(whole[1], abs=1e-12)
    for all_at_once, before_it, after_it in zip(whole[2], first[2], second[2], strict=True):
        assert before_it + after_it == all_at_once == Counter(range(all_at_once.total()))
    assert sum(each.total() for each in whole[2]) == STEPS.steps * STEPS.batch
    assert min(each.total() for each in whole[2]) > 0


def test_what_does_not_fit_is_refused_on_all_ranks(ranks, prepared, tmp_path):
    pairs, fewer = str(prepared / ".pairs"), str(prepared / ".fewer")
    settings = asked(tmp_path, pairs, Layout(dp=2))
    ranks(2).run(do, settings, 1)
    again = replace(settings, run=replace(settings.run, resume=True))
    other = replace(again, steps=replace(STEPS, data=fewer))
    small = replace(settings, model=replace(MODEL, vocabulary=256))
    mixed = asked(tmp_path, [f"a=0.5:{pairs}", f"b=0.5:{fewer}"], Layout(dp=2))
    weights = asked(tmp_path, [f"a=0.5:{pairs}", f"b=0.5:{pairs}"], Layout(dp=2), resume=True)
    missing = asked(tmp_path, f"{prepared}/none", Layout(dp=2))
    for wrong, error in (
        (other, r"the tokenizer is byte pairs \w+… there and byte pairs \w+… here"),
        (small, "vocabulary=256 is less than the 300 tokens of"),
        (mixed, "mix has 'a' and 'b', whose tokens are of different tokenizers"),
        (weights, "are not the same text"),
        (missing, "is no file and no folder"),
    ):
        for said in ranks(2).run(refused, wrong):
            assert re.search(error, said), said


def answers(world, find, asked, layouts):
    """What `find` gives in each layout."""
    return [find(world, asked, "minitrain.train", tools.settings_of(Path(asked.run), layout)) for layout in layouts]


def test_text_and_loss_of_a_run_on_byte_pairs(ranks, prepared, tmp_path):
    """In the run's own tokens, from the tokenizer in its folder; and on any other text."""
    settings = asked(tmp_path, str(prepared / ".pairs"), Layout(dp=2), evaluate_every=4)
    ranks(2).run(do, settings)
    folder = settings.run.folder
    assert (folder / "tokenizer.json").read_bytes() == (prepared / ".pairs" / "tokenizer.json").read_bytes()
    layouts = [Layout(tp=2), Layout(pp=2)]
    one = ranks(1).run(answers, loaded.text, tools.Generate(str(folder), "the shard", 12, 0.0), [Layout()])[0][0]
    assert one.startswith("the shard") and len(one) > len("the shard")
    assert (
        ranks(2).run(answers, loaded.text, tools.Generate(str(folder), "the shard", 12, 0.0), layouts)[0] == [one] * 2
    )
    (tmp_path / "other.txt").write_text(text(99, 4000), encoding="utf-8")
    for data in (None, str(tmp_path / "other.txt")):
        told = ranks(2).run(answers, loaded.loss, tools.Evaluate(str(folder), data), layouts)[0]
        assert told[0] == told[1]
        nats, bits = map(float, re.findall(r"([\d.]+) (?:nats|bits)", told[0]))
        assert bits < nats / math.log(2) / 2, "a token has more than two bytes"
    documents = [{"text": text(number, 60)} for number in range(40)]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    run_of_pairs, tokenizer = tools.settings_of(folder, Layout()), Pairs(folder / "tokenizer.json")
    source = loaded.held_out_of(tools.Evaluate(str(folder), str(lines)), run_of_pairs, tokenizer)
    kept = [each["text"].encode() for each in documents if place_of(each["text"].encode()) < VALIDATION_SHARE]
    expected = [token for row in tokenizer.encode(kept) for token in [*row.tolist(), tokenizer.end]]
    assert kept and source.validation.tolist() == expected and source.tokenizer is tokenizer
    with pytest.raises(RanksError, match="has tokens of another tokenizer than .*prepare it with --tokenizer"):
        ranks(2).run(answers, loaded.loss, tools.Evaluate(str(folder), str(prepared / ".fewer")), layouts)
    # A run of bytes in the same folder leaves no tokenizer that does not belong to it.
    again = replace(settings, run=replace(settings.run, overwrite=True), steps=STEPS)
    ranks(2).run(do, again)
    assert not (folder / "tokenizer.json").exists()
