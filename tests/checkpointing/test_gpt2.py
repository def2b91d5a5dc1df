"""Weights under Hugging Face's names: our model computes with them what theirs does, in every layout, and both ways."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.full import state
from minitrain.checkpointing.full.weights import export_safetensors, import_safetensors
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.train import build
from minitrain.trainer import evaluation

LAYERS, HIDDEN, HEADS, POSITIONS, VOCABULARY = 2, 16, 4, 8, 257
MODEL = Model(layers=LAYERS, hidden=HIDDEN, heads=HEADS, positions=POSITIONS, vocabulary=VOCABULARY)
TOKENS = [[0, 1, 2, 256, 254, 3, 77, 100]]


def shapes():
    """Those of GPT2Model (transformers/models/gpt2/modeling_gpt2.py): Conv1D has its weight as [in, out]."""
    found = {"wte.weight": (VOCABULARY, HIDDEN), "wpe.weight": (POSITIONS, HIDDEN)}
    for layer in range(LAYERS):
        linear = {"attn.c_attn": 3 * HIDDEN, "attn.c_proj": HIDDEN, "mlp.c_fc": 4 * HIDDEN, "mlp.c_proj": HIDDEN}
        for name, wide in linear.items():
            found[f"h.{layer}.{name}.weight"] = (4 * HIDDEN if name == "mlp.c_proj" else HIDDEN, wide)
            found[f"h.{layer}.{name}.bias"] = (wide,)
    for norm in ("ln_f", *(f"h.{layer}.ln_{number}" for layer in range(LAYERS) for number in (1, 2))):
        found |= {f"{norm}.weight": (HIDDEN,), f"{norm}.bias": (HIDDEN,)}
    return found


def theirs(prefix="", tied=True):
    """Weights as a file has them."""
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.randn(shape, generator=generator).double() / 3 for name, shape in shapes().items()}
    made = {prefix + name: tensor for name, tensor in made.items()}
    return made if tied else made | {"lm_head.weight": torch.randn(VOCABULARY, HIDDEN, generator=generator).double()}


def forward(weights, tokens):
    """The logits of GPT2LMHeadModel, written out after its source."""
    w = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}

    def norm(x, name):
        return F.layer_norm(x, (HIDDEN,), w[f"{name}.weight"], w[f"{name}.bias"], eps=1e-5)

    def conv1d(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    later = torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()
    for layer in range(LAYERS):
        query, key, value = conv1d(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn").split(HIDDEN, dim=2)
        query, key, value = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in (query, key, value))
        scores = query @ key.transpose(2, 3) / math.sqrt(HIDDEN // HEADS)
        mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ value
        x = x + conv1d(mixed.transpose(1, 2).flatten(2), f"h.{layer}.attn.c_proj")
        wide = conv1d(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
        wide = 0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))  # gelu_new
        x = x + conv1d(wide, f"h.{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ w.get("lm_head.weight", w["wte.weight"]).T


def made_and_loaded(world, file, model, layout):
    training = build(Settings(model, layout, Steps(batch=8, dtype="float64")), world.device)
    weights = state.state_of(training.part, training.gradients)
    import_safetensors(file, weights)
    state.refresh(training.gradients)
    return training, weights


def logits(world, files, model, layouts):
    found = []
    for layout in layouts:
        for file in files:
            training, _ = made_and_loaded(world, file, model, layout)
            with torch.no_grad():
                found.append(evaluation._logits(training, torch.tensor(TOKENS)))
            training.close()
    return found


LAYOUTS = {
    1: [Layout()],
    2: [Layout(tp=2), Layout(pp=2), Layout(dp=2, zero=1)],
    4: [Layout(dp=2, tp=2, zero=3), Layout(pp=2, tp=2, sequence_parallel=True), Layout(dp=4, zero=3)],
}


@pytest.mark.parametrize("tied", (True, False))
@pytest.mark.parametrize("size", LAYOUTS)
def test_our_logits_are_theirs(ranks, tmp_path, size, tied):
    """Names with the prefix and without; masks that early files have are left out."""
    weights, buffers = theirs(tied=tied), {}
    for layer in range(LAYERS):
        buffers[f"h.{layer}.attn.bias"] = torch.ones(1, 1, POSITIONS, POSITIONS).tril()
        buffers[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file({**weights, **buffers}, tmp_path / "early")
    save_file(theirs("transformer.", tied), tmp_path / "late")
    right = forward(weights, torch.tensor(TOKENS))
    files = [tmp_path / "early", tmp_path / "late"]
    every = ranks(size).run(logits, files, replace(MODEL, tied=tied), LAYOUTS[size])
    for found in zip(*every, strict=True):
        found = [each for each in found if each is not None]
        assert found
        for each in found:
            # Sums of at most 64 products, a few hundred of them one after another: 1e4 roundings of 1e-16.
            torch.testing.assert_close(each[..., :VOCABULARY], right, atol=1e-12, rtol=1e-12)


def there_and_back(world, file, folder, layout, tied):
    training, weights = made_and_loaded(world, file, replace(MODEL, tied=tied), layout)
    path = checkpoint.save(folder, 1, weights, {})
    training.close()
    return path


@pytest.mark.parametrize(("tied", "layout"), [(True, Layout(dp=2, tp=2)), (False, Layout(pp=2, tp=2))])
def test_what_is_written_is_what_was_read(ranks, tmp_path, tied, layout):
    """As GPT2LMHeadModel saves it: with the prefix, and a head only if it is not tied."""
    right = theirs("transformer.", tied)
    save_file(right, tmp_path / "in")
    path = ranks(4).run(there_and_back, tmp_path / "in", tmp_path / "checkpoints", layout, tied)[0]
    export_safetensors(path, tmp_path / "out", as_gpt2=True)
    found = load_file(tmp_path / "out")
    assert found.keys() == right.keys() and all(torch.equal(found[name], tensor) for name, tensor in right.items())


def test_a_second_name_of_the_table_must_be_it(ranks, tmp_path):
    """As files have it whose writer did not know of tied weights."""
    same = {**theirs(), "lm_head.weight": theirs()["wte.weight"].clone()}
    save_file(same, tmp_path / "same")
    other = {**same, "lm_head.weight": same["wte.weight"].index_fill(0, torch.tensor(256), 1.0)}  # a row of rank 1
    save_file(other, tmp_path / "other")
    ranks(2).run(logits, [tmp_path / "same"], MODEL, [Layout(tp=2)])
    message = ranks(2).run(refused, tmp_path / "other", MODEL, Layout(tp=2))
    assert len(set(message)) == 1 and "has a lm_head.weight that differs from wte.weight; add --tied False" in message[0]


def refused(world, file, model, layout):
    with pytest.raises(ValueError) as error:
        made_and_loaded(world, file, model, layout)
    return str(error.value)


def without(*names):
    return {name: tensor for name, tensor in theirs().items() if name not in names}


SIZES = "; its sizes are --layers 2 --hidden 16 --positions 8 --vocabulary 257, with learned positions and no experts"


@pytest.mark.parametrize(
    ("weights", "model", "words"),
    [
        (without("h.1.ln_2.bias"), MODEL, "it lacks h.1.ln_2.bias; its sizes are"),
        (theirs() | {"score.weight": torch.ones(1)}, MODEL, "the run has no score.weight; its sizes are"),
        (theirs(), replace(MODEL, layers=1), "the run has no h.1.attn.c_attn.bias; the run has no h.1.attn.c_attn.w"),
        (theirs(), replace(MODEL, layers=3), "it lacks h.2.attn.c_attn.bias"),
        (theirs(), replace(MODEL, positions=16), "wpe.weight has shape (8, 16) in it and (16, 16) in the run" + SIZES),
        (theirs(), replace(MODEL, hidden=32), "attn.c_attn.weight has shape (16, 48) in it and (32, 96) in the run"),
        (theirs(), replace(MODEL, positions_kind="rope"), "the run has no wpe.weight" + SIZES),
        (
            theirs() | {"h.1.mlp.c_fc.weight": torch.full((HIDDEN, 4 * HIDDEN), math.nan)},
            MODEL,
            "has NaN or infinite elements in h.1.mlp.c_fc.weight; give",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused_on_all_ranks(ranks, tmp_path, weights, model, words):
    save_file(weights, tmp_path / "file")
    messages = ranks(2).run(refused, tmp_path / "file", model, Layout(dp=2))
    assert len(set(messages)) == 1 and words in messages[0], messages[0]


def saved(world, folder, model):
    training = build(Settings(model, Layout(), Steps(batch=8)), world.device)
    return checkpoint.save(folder, 1, state.state_of(training.part, training.gradients), {})


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (replace(MODEL, positions_kind="rope"), "GPT-2 has learned positions, and this model none; leave out"),
        (replace(MODEL, experts=2), "GPT-2 has no blocks.1.mlp.experts.0.down.bias"),
    ],
)
def test_models_that_gpt2_is_not_are_not_written(ranks, tmp_path, model, words):
    (path,) = ranks(1).run(saved, tmp_path, model)
    with pytest.raises(ValueError) as error:
        export_safetensors(path, tmp_path / "out", as_gpt2=True)
    assert words in str(error.value)
    assert [each.name for each in Path(tmp_path).iterdir()] == [path.name]
