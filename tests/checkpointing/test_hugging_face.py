"""Weights under Hugging Face's names: our model computes with them what theirs does, in every layout, and both ways."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.full import hugging_face, state
from minitrain.checkpointing.full.weights import export_safetensors, import_safetensors
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.train import build
from minitrain.trainer import command, evaluation
from tests.models.test_llama import rms, rotated

LAYERS, HIDDEN, HEADS, POSITIONS, VOCABULARY = 2, 16, 4, 8, 257
MODEL = Model(layers=LAYERS, hidden=HIDDEN, heads=HEADS, positions=POSITIONS, vocabulary=VOCABULARY)
TOKENS = [[0, 1, 2, 256, 254, 3, 77, 100]]

BASE = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "vocab_size": VOCABULARY}
BASE |= {"num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": POSITIONS, "hidden_act": "silu"}
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED |= {"original_max_position_embeddings": 8192}
QWEN3 = {"head_dim": 6, "num_key_value_heads": 4, "tie_word_embeddings": True, "rms_norm_eps": 1e-3, "use_cache": True}
CONFIGS = {
    "gpt2": {"model_type": "gpt2", "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS}
    | {"vocab_size": VOCABULARY, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
    # Of its pairs of 8 elements, the rule leaves the first two, slows the last one, and the third in part.
    "llama": BASE | {"model_type": "llama", "head_dim": 8, "rope_theta": 5e5, "rope_scaling": SCALED},
    "mistral": BASE | {"model_type": "mistral", "rope_theta": 100.0, "sliding_window": None, "rope_scaling": None},
    "qwen2": BASE | {"model_type": "qwen2", "rope_theta": 50.0, "sliding_window": 4, "use_sliding_window": False},
    "qwen3": BASE | QWEN3 | {"model_type": "qwen3", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
}


def shapes(kind):
    """Those of theirs (transformers/models/*/modeling_*.py)."""
    found, c = {}, CONFIGS[kind]
    if kind == "gpt2":  # Conv1D has its weight as [in, out]
        found = {"wte.weight": (VOCABULARY, HIDDEN), "wpe.weight": (POSITIONS, HIDDEN)}
        linear = {"attn.c_attn": 3 * HIDDEN, "attn.c_proj": HIDDEN, "mlp.c_fc": 4 * HIDDEN, "mlp.c_proj": HIDDEN}
        for layer in range(LAYERS):
            for name, wide in linear.items():
                found[f"h.{layer}.{name}.weight"] = (4 * HIDDEN if name == "mlp.c_proj" else HIDDEN, wide)
                found[f"h.{layer}.{name}.bias"] = (wide,)
        for norm in ("ln_f", *(f"h.{layer}.ln_{number}" for layer in range(LAYERS) for number in (1, 2))):
            found |= {f"{norm}.weight": (HIDDEN,), f"{norm}.bias": (HIDDEN,)}
        return found
    d = c.get("head_dim", HIDDEN // HEADS)
    wide, narrow, inner = HEADS * d, c["num_key_value_heads"] * d, c["intermediate_size"]
    found = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}{norm}.weight"] = (HIDDEN,)
        for name, rows in (("q", wide), ("k", narrow), ("v", narrow)):
            found[f"{at}self_attn.{name}_proj.weight"] = (rows, HIDDEN)
            found |= {f"{at}self_attn.{name}_proj.bias": (rows,)} if kind == "qwen2" else {}
            found |= {f"{at}self_attn.{name}_norm.weight": (d,)} if kind == "qwen3" and name != "v" else {}
        found[f"{at}self_attn.o_proj.weight"] = (HIDDEN, wide)
        found |= {f"{at}mlp.{name}_proj.weight": (inner, HIDDEN) for name in ("gate", "up")}
        found[f"{at}mlp.down_proj.weight"] = (HIDDEN, inner)
    return found


def theirs(kind="gpt2", prefix="", tied=True):
    """Weights as a file has them."""
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.randn(shape, generator=generator).double() / 3 for name, shape in shapes(kind).items()}
    made = {prefix + name: tensor for name, tensor in made.items()}
    return made if tied else made | {"lm_head.weight": torch.randn(VOCABULARY, HIDDEN, generator=generator).double()}


def attention(query, key, value):
    """Vaswani et al. 2017, equation 1, each with the tokens before it; [batch, heads, tokens, head]."""
    key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
    scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
    later = torch.ones(scores.shape[-2:]).triu(1).bool()
    return (scores.masked_fill(later, -math.inf).softmax(-1) @ value).transpose(1, 2).flatten(2)


def gpt2(weights, tokens):
    """The logits of GPT2LMHeadModel, written out after its source."""
    w = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}

    def norm(x, name):
        return F.layer_norm(x, (HIDDEN,), w[f"{name}.weight"], w[f"{name}.bias"], eps=1e-5)

    def conv1d(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    for layer in range(LAYERS):
        parts = conv1d(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn").split(HIDDEN, dim=2)
        mixed = attention(*(part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in parts))
        x = x + conv1d(mixed, f"h.{layer}.attn.c_proj")
        wide = conv1d(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
        wide = 0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))  # gelu_new
        x = x + conv1d(wide, f"h.{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ w.get("lm_head.weight", w["wte.weight"]).T


def turned(x, c):
    """Of one sequence, each head by itself."""
    base = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
    factor = (c.get("rope_scaling") or {"factor": 1.0})["factor"]
    return torch.stack([rotated(head, base, factor) for head in x[0]])[None]


def llama(weights, tokens, c):
    """The logits of Llama, Mistral, Qwen2 and Qwen3: Touvron et al. 2023, §2.2; grouped queries; norms of heads."""
    w = {name.removeprefix("model."): tensor for name, tensor in weights.items()}

    def norm(x, name):
        return rms(x, w[f"{name}.weight"], c.get("rms_norm_eps", 1e-6))

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    x = w["embed_tokens.weight"][tokens]
    for layer in range(LAYERS):
        at, own, parts = f"layers.{layer}.self_attn.", norm(x, f"layers.{layer}.input_layernorm"), []
        for name, heads in (("q", HEADS), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])):
            part = linear(own, f"{at}{name}_proj").unflatten(2, (heads, -1)).transpose(1, 2)
            part = norm(part, f"{at}{name}_norm") if f"{at}{name}_norm.weight" in w else part
            parts.append(part if name == "v" else turned(part, c))
        x = x + linear(attention(*parts), f"{at}o_proj")
        own, at = norm(x, f"layers.{layer}.post_attention_layernorm"), f"layers.{layer}.mlp."
        gate = linear(own, f"{at}gate_proj")
        x = x + linear(gate / (1 + torch.exp(-gate)) * linear(own, f"{at}up_proj"), f"{at}down_proj")
    return norm(x, "norm") @ w.get("lm_head.weight", w["embed_tokens.weight"]).T


def written(folder, kind, tied=True, files=3, **changes):
    """A folder as Hugging Face has it: weights in several files, their index, and config.json."""
    folder.mkdir()
    weights = theirs(kind, "transformer." if kind == "gpt2" else "", tied)
    names, index = list(weights), {}
    for number in range(files):
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        save_file({name: weights[name] for name in names[number::files]}, folder / file)
        index |= dict.fromkeys(names[number::files], file)
    (folder / hugging_face.INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": index}))
    config = CONFIGS[kind] | {"tie_word_embeddings": tied} | changes
    (folder / hugging_face.CONFIG).write_text(json.dumps(config))
    return weights


def made_and_loaded(world, file, model, layout):
    training = build(Settings(model, layout, Steps(batch=8, dtype="float64")), world.device)
    weights = state.state_of(training.part, training.gradients)
    import_safetensors(file, weights, model)
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


def model_of(folder):
    return Model(**hugging_face.options(folder / hugging_face.CONFIG))


@pytest.mark.parametrize(
    ("kind", "tied"),
    [("gpt2", True), ("gpt2", False), ("llama", False), ("mistral", True), ("qwen2", False), ("qwen3", True)],
)
@pytest.mark.parametrize("size", LAYOUTS)
def test_our_logits_are_theirs(ranks, tmp_path, size, kind, tied):
    """A folder, and for GPT-2 files without config.json, also with the masks of early ones and without the prefix."""
    weights, files = written(tmp_path / "folder", kind, tied), [tmp_path / "folder"]
    right = (
        gpt2(weights, torch.tensor(TOKENS)) if kind == "gpt2" else llama(weights, torch.tensor(TOKENS), CONFIGS[kind])
    )
    if kind == "gpt2":
        buffers = {f"h.{layer}.attn.bias": torch.ones(1, 1, POSITIONS, POSITIONS).tril() for layer in range(LAYERS)}
        buffers |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(LAYERS)}
        save_file({**theirs(tied=tied), **buffers}, tmp_path / "early")
        files.append(tmp_path / "early")
    every = ranks(size).run(logits, files, model_of(tmp_path / "folder"), LAYOUTS[size])
    for found in zip(*every, strict=True):
        found = [each for each in found if each is not None]
        assert found
        for each in found:
            # Sums of at most 64 products, a few hundred of them one after another: 1e4 roundings of 1e-16.
            torch.testing.assert_close(each[..., :VOCABULARY], right, atol=1e-12, rtol=1e-12)


def there_and_back(world, file, folder, layout, model):
    training, weights = made_and_loaded(world, file, model, layout)
    path = checkpoint.save(folder, 1, weights, {})
    training.close()
    return path


@pytest.mark.parametrize(
    ("kind", "tied", "layout"),
    [
        ("gpt2", True, Layout(dp=2, tp=2)),
        ("qwen2", True, Layout(pp=2, tp=2)),
        ("qwen3", False, Layout(dp=4, zero=3)),
    ],
)
def test_what_is_written_is_what_was_read(ranks, tmp_path, kind, tied, layout):
    """As theirs save it: with the prefix, and a head only if it is not tied; and its settings."""
    right, model = written(tmp_path / "in", kind, tied), model_of(tmp_path / "in")
    path = ranks(4).run(there_and_back, tmp_path / "in", tmp_path / "checkpoints", layout, model)[0]
    export_safetensors(path, tmp_path / hugging_face.FILE, vars(model.sizes))
    found = load_file(tmp_path / hugging_face.FILE)
    assert found.keys() == right.keys() and all(torch.equal(found[name], tensor) for name, tensor in right.items())
    config = json.loads((tmp_path / hugging_face.CONFIG).read_text())
    asked = json.loads((tmp_path / "in" / hugging_face.CONFIG).read_text())
    rope = asked.pop("rope_parameters", {"rope_theta": None})
    asked |= {"rope_theta": rope["rope_theta"]} if rope["rope_theta"] else {}
    told = {name for name in asked if name not in ("sliding_window", "use_sliding_window", "use_cache")}
    assert {name: config[name] for name in told} == {name: asked[name] for name in told}
    assert config["torch_dtype"] == "float64"


def test_a_second_name_of_the_table_must_be_it(ranks, tmp_path):
    """As files have it whose writer did not know of tied weights."""
    same = {**theirs(), "lm_head.weight": theirs()["wte.weight"].clone()}
    save_file(same, tmp_path / "same")
    other = {**same, "lm_head.weight": same["wte.weight"].index_fill(0, torch.tensor(256), 1.0)}  # a row of rank 1
    save_file(other, tmp_path / "other")
    ranks(2).run(logits, [tmp_path / "same"], MODEL, [Layout(tp=2)])
    (message, again) = ranks(2).run(refused, [(tmp_path / "other", MODEL)], Layout(tp=2))
    assert message == again and "lm_head.weight that differs from wte.weight; add --tied False" in message[0]


def refused(world, cases, layout):
    """The messages, with which nothing has been changed."""
    messages = []
    for file, model in cases:
        training = build(Settings(model, layout, Steps(batch=8, dtype="float64")), world.device)
        weights = state.state_of(training.part, training.gradients)
        before = [shard.tensor.clone() for sharded in weights.values() for shard in sharded.shards]
        with pytest.raises((ValueError, OSError)) as error:
            import_safetensors(file, weights, model)
        messages.append(str(error.value))
        after = [shard.tensor for sharded in weights.values() for shard in sharded.shards]
        assert all(map(torch.equal, before, after))
        training.close()
    return messages


def without(*names):
    return {name: tensor for name, tensor in theirs().items() if name not in names}


SIZES = "; its sizes are --layers 2 --hidden 16 --vocabulary 257 --positions 8"
ROPE = replace(MODEL, norm="rms", mlp="swiglu", mlp_hidden=24, biases="none", positions_kind="rope", tied=False)


def test_files_that_do_not_fit_are_refused_on_all_ranks(ranks, tmp_path):
    nan = {"h.1.mlp.c_fc.weight": torch.full((HIDDEN, 4 * HIDDEN), math.nan)}
    meta = {"layers.0.attention.wq.weight": torch.ones(1)}  # of Meta's own files, with another order of rows
    cases = [
        (without("h.1.ln_2.bias"), MODEL, "it lacks h.1.ln_2.bias; its sizes are"),
        (theirs(), replace(MODEL, layers=1), "the run has no h.1.attn.c_attn.bias; the run has no h.1.attn.c_attn.w"),
        (theirs(), replace(MODEL, positions=16), "wpe.weight has shape (8, 16) in it and (16, 16) in the run" + SIZES),
        (theirs(), replace(MODEL, hidden=32), "attn.c_attn.weight has shape (16, 48) in it and (32, 96) in the run"),
        (theirs() | nan, MODEL, "has NaN or infinite elements in h.1.mlp.c_fc.weight; give"),
        (meta, MODEL, "it lacks blocks.0.attention.key.bias"),
        # Heads are those of the preset, and nobody has named them.
        (theirs("llama"), replace(ROPE, heads=None), "do not tell how many heads there are: put it there; or give"),
    ]
    files = [tmp_path / str(number) for number in range(len(cases))]
    for file, (weights, *_) in zip(files, cases, strict=True):
        save_file(weights, file)
    asked = [(file, model) for file, (_, model, _) in zip(files, cases, strict=True)]
    message, again = ranks(2).run(refused, asked, Layout(dp=2))
    assert message == again
    for found, (*_, words) in zip(message, cases, strict=True):
        assert words in found, found


def test_config_json_decides(ranks, tmp_path):
    """Weights of 4 heads and 2 key heads fit into a run of 2 and 1, and are refused; also one file of a folder."""
    written(tmp_path / "a", "llama", files=1)
    model = model_of(tmp_path / "a")
    cases = [
        (replace(model, heads=2, kv_heads=1, head_size=16), "heads=4 there and 2 in the run", "--heads 4 --kv-heads 2"),
        (
            replace(model, rope_base=1e4),
            "rope_base=500000.0 there and 10000.0 in the run; use --rope-base 500000.0",
            "",
        ),
        (replace(model, rope_factor=1.0), "use --rope-factor 8.0", ""),
    ]
    files = [tmp_path / "a", tmp_path / "a" / "model-00001-of-00001.safetensors", tmp_path / "a"]
    asked = [(file, model) for file, (model, *_) in zip(files, cases, strict=True)]
    message, again = ranks(2).run(refused, asked, Layout(dp=2))
    assert message == again
    for found, (_, *words) in zip(message, cases, strict=True):
        assert "config.json is of another model: " in found and all(each in found for each in words), found


HUGE = 10**400


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("llama", {"model_type": "gemma"}, "has model_type='gemma', and this model can be one of gpt2, llama"),
        ("llama", {"hidden_size": None}, "lacks hidden_size"),
        ("llama", {"hidden_size": "16"}, "has hidden_size='16', where a whole number from 1 to 2^31 is expected"),
        ("llama", {"num_hidden_layers": True}, "has num_hidden_layers=True, where"),
        ("llama", {"vocab_size": HUGE}, "has vocab_size=1000"),
        ("llama", {"rms_norm_eps": math.nan}, "has rms_norm_eps=nan, where a number"),
        ("llama", {"tie_word_embeddings": 1}, "has tie_word_embeddings=1, where true or false"),
        ("llama", {"rope_scaling": "linear"}, "has rope_scaling='linear', which is no table"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "has type='linear' which"),
        ("llama", {"rope_scaling": SCALED | {"factor": None}}, "lacks factor"),
        ("llama", {"rope_parameters": {"full_attention": {}}}, "has full_attention={} which"),
        ("llama", {"attention_bias": True, "mlp_bias": True}, "has attention_bias=True, mlp_bias=True which"),
        ("mistral", {"sliding_window": 7}, "has sliding_window=7, used by more than --positions 7, which this"),
        ("qwen2", {"use_sliding_window": True}, "has sliding_window=4, used by more than --positions 4, which"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "has scale_attn_by_inverse_layer_idx=True which"),
    ],
)
def test_settings_from_outside_are_not_believed(tmp_path, kind, changes, words):
    file = tmp_path / hugging_face.CONFIG
    file.write_text(json.dumps(CONFIGS[kind] | changes))
    with pytest.raises(ValueError) as error:
        hugging_face.options(file, POSITIONS)
    assert f"{file} {words}" in str(error.value)


def test_a_window_that_is_not_filled_is_none(tmp_path):
    file = tmp_path / hugging_face.CONFIG
    file.write_text(json.dumps(CONFIGS["mistral"] | {"sliding_window": 7}))
    assert hugging_face.options(file, 7)["positions"] == hugging_face.options(file)["positions"] == 7
    silent = CONFIGS["mistral"] | {"max_position_embeddings": 32768}
    file.write_text(json.dumps({name: value for name, value in silent.items() if name != "sliding_window"}))
    assert hugging_face.options(file)["positions"] == hugging_face.LONGEST
    with pytest.raises(ValueError, match="sliding_window=4096"):  # transformers' own, in MistralConfig
        hugging_face.options(file, 4097)


def test_indexes_from_outside_are_not_believed(ranks, tmp_path):
    written(tmp_path / "elsewhere", "llama")
    index = json.loads((tmp_path / "elsewhere" / hugging_face.INDEX).read_text())
    model, files = model_of(tmp_path / "elsewhere"), index["weight_map"]
    one, *_, last = files
    cases = {
        "[" * 100_000: "cannot be read: ",
        "\udc80": "cannot be read: ",
        '{"weight_map": {"a": "b", "a": "c"}}': "cannot be read: it has a name twice",
        json.dumps({"weight_map": ["a"]}): "lists no files: weight_map=['a'] is no table",
        json.dumps({"weight_map": files | {one: "../elsewhere/" + files[one]}}): "which is no safetensors file next to",
        json.dumps({"weight_map": files | {one: "a.safetensors"}}): "No such file",
        json.dumps({"weight_map": files | {one: files[last]}}): f"differ in which tensors are there: {one}",
        json.dumps({"weight_map": {name: files[name] for name in files if name != last}}): f"are there: {last}",
    }
    folders = [tmp_path / str(number) for number in range(len(cases))]
    for folder, text in zip(folders, cases, strict=True):
        written(folder, "llama")
        (folder / hugging_face.INDEX).write_text(text, errors="surrogateescape")
    (tmp_path / "empty").mkdir()
    cases["empty"] = "has no model.safetensors and no model.safetensors.index.json; name the file"
    message, again = ranks(2).run(refused, [(folder, model) for folder in [*folders, tmp_path / "empty"]], Layout(tp=2))
    assert message == again
    for found, words in zip(message, cases.values(), strict=True):
        assert words in found, (found, words)


def test_a_folder_tells_the_trainer_its_model(tmp_path, capsys):
    """All but what is given as an option; what is given otherwise is compared (`test_config_json_decides`)."""
    written(tmp_path / "a", "qwen3", max_position_embeddings=40960)
    asked = command.read(["--load", str(tmp_path / "a"), "--heads", "2"])
    longest = {"positions": hugging_face.LONGEST, "heads": 2}
    assert asked.model == replace(model_of(tmp_path / "a"), **longest) and asked.model.sizes.qk_norm
    assert command.read(["--load", str(tmp_path / "a"), "--preset", "xl"]).model == Model("xl")
    (tmp_path / "a" / hugging_face.CONFIG).write_text("{}")
    assert command.run("minitrain.train", ["--load", str(tmp_path / "a")]) == 2
    assert "config.json has model_type=None" in capsys.readouterr().err


@pytest.mark.parametrize(
    "model",
    [replace(MODEL, positions_kind="rope"), replace(MODEL, experts=2), replace(MODEL, kv_heads=2)],
)
def test_models_that_theirs_are_not_are_not_written(tmp_path, model):
    with pytest.raises(ValueError, match="none of gpt2, llama, .* leave out --format"):
        hugging_face.configuration(vars(model.sizes), "float32")
    assert hugging_face.configuration(vars(MODEL.sizes), "float32")["model_type"] == "gpt2"


RANDOM = {
    "GPT2LMHeadModel": {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS},
    "LlamaForCausalLM": {"rope_scaling": SCALED, "rope_theta": 5e5, "head_dim": 8},
    "MistralForCausalLM": {"sliding_window": None},
    "Qwen2ForCausalLM": {"tie_word_embeddings": True},
    "Qwen3ForCausalLM": {"head_dim": 6},
}


@pytest.mark.parametrize("kind", RANDOM)
def test_transformers_agrees(ranks, tmp_path, kind):
    """Where it is installed: no part of this project needs it."""
    transformers = pytest.importorskip("transformers")
    sizes = {name: value for name, value in BASE.items() if name != "hidden_act"} | RANDOM[kind]
    torch.manual_seed(0)
    name = kind.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape) / 10  # also norms and biases
    model.save_pretrained(tmp_path / "in", max_shard_size="20KB")
    own, layout = model_of(tmp_path / "in"), Layout(dp=2, tp=2, zero=1)
    assert (tmp_path / "in" / hugging_face.INDEX).exists()
    with torch.no_grad():
        right = model(torch.tensor(TOKENS)).logits
    for (found,) in ranks(4).run(logits, [tmp_path / "in"], own, [layout]):
        # It computes in float32: roundings of 6e-8 of numbers up to 10, some dozen of them.
        torch.testing.assert_close(found[..., :VOCABULARY].float(), right, atol=1e-5, rtol=1e-5)
    path = ranks(4).run(there_and_back, tmp_path / "in", tmp_path / "checkpoints", layout, own)[0]
    (tmp_path / "out").mkdir()
    export_safetensors(path, tmp_path / "out" / hugging_face.FILE, vars(own.sizes))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    before = model.state_dict()
    assert again.keys() == before.keys()
    assert all(torch.equal(again[name].float(), tensor) for name, tensor in before.items())
