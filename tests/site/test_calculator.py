"""The calculator's formulas in JavaScript are those of `minitrain.costs`: both are given a thousand random inputs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import calculator
import pytest

from minitrain.composition.settings import Model
from minitrain.costs import (
    composition,
    composition_kept,
    composition_work,
    fabric,
    layout,
    layout_search,
    pipeline,
    roofline,
    time_bar,
    vocabulary,
    zero,
)
from minitrain.costs.composition import Latent, Shape
from minitrain.costs.fabric import Fabric
from minitrain.costs.layout import Cut, Sizes
from minitrain.planning.full.plan_time import shape_of
from tests.site.conftest import ROOT
from tests.site.javascript import answers, plain, same

pytestmark = pytest.mark.usefixtures("without_shapes")  # small functions are called very often
FILES = [ROOT / "docs" / "javascripts" / name for name in ("costs.js", "layouts.js", "config.js")]


def drawn(draw: random.Random, heads: int, positions: int) -> Shape:
    """A model of any kind: GPT-2's, Llama's, a mixture of experts, with latent attention or without."""
    layers, experts = draw.randint(1, 128), draw.choice([0, 0, 2, 3, 8, 64])
    shape = Shape(
        layers, 16 * heads * draw.randint(1, 40), heads, positions, draw.randint(10, 200000), draw.random() < 0.5,
        experts, draw.random() < 0.5, draw.choice([0, *(n for n in (1, 2, 8) if heads % n == 0)]),
        draw.choice([0, 256, 11008]), draw.random() < 0.5, draw.choice([0, 64, 128]), draw.random() < 0.5,
        draw.choice(["all", "qkv", "none"]), draw.random() < 0.3, draw.choice([0, 512]), draw.choice([0, 0, 1, 2]),
        draw.choice([1, 2, 3]), draw.choice([0, 0, 3]), draw.random() < 0.3, chosen=draw.choice([1, 2, 8]),
    )  # fmt: skip
    return shape._replace(latent=Latent(1536, 512, 128, 64, 128)) if draw.random() < 0.2 else shape


def inputs(draw: random.Random) -> dict[str, tuple[tuple, Callable[..., Any]]]:
    """For each function of the file, arguments and its original."""
    heads = draw.choice([1, 2, 4, 8, 16, 32])
    positions = 8 * draw.randint(1, 4096)
    shape = drawn(draw, heads, positions)
    cut = Cut(
        draw.randint(1, 64), draw.randint(1, min(16, shape.layers)), draw.choice([1, 1, 2, 4]),
        draw.choice([ranks for ranks in (1, 2, 4, 8) if heads % ranks == 0]), draw.randint(1, 3), draw.randint(0, 3),
        draw.random() < 0.5, draw.choice(["none", "selective", "full"]), draw.randint(1, 64), draw.randint(1, 8),
    )  # fmt: skip
    sizes = Sizes(draw.choice([2, 4]), draw.choice([2, 4]), draw.choice([0, 4, 8, 12]))
    machine = draw.choice(list(roofline.MACHINES.values()))
    stage, small = draw.randrange(cut.pp), (draw.randint(1, 8), shape.positions, shape.hidden)
    cut_layer = cut.tp, cut.sequence, cut.recompute, sizes.parameter
    lines = Fabric(
        draw.choice([4, 8]), draw.uniform(0.1, 1), draw.uniform(0.1, 1), draw.choice([0, 3e-6]), draw.uniform(0, 2e-5)
    )
    kind = draw.choice(list(layout.kinds(shape)))
    half = time_bar.Reached(draw.uniform(0.2, 0.7))
    reached = draw.choice([half, time_bar.fitted(machine), half._replace(core=0.3), half._replace(moved=100.0)])
    sent = [(draw.random(), draw.random()) for _ in range(3)]
    return {
        "layerCounts": ((shape.layers, cut.pp), composition.layer_counts),
        "mixtures": ((shape, cut.pp, stage), layout.mixtures),
        "rows": ((shape.vocabulary, cut.tp), vocabulary.rows),
        "layerShares": ((shape, kind, cut.tp, small[0] if kind else 0), layout.layer_shares),
        "parameters": ((shape, cut, stage), layout.parameters),
        "stateBytes": ((cut.zero, shape.hidden**2, cut.dp, *sizes), zero.state_bytes),
        "layerKept": ((cut.sequences, shape, *cut_layer), composition_kept.layer_kept),
        "mixtureKept": ((cut.sequences, shape, small[0] * positions, *cut_layer), composition_kept.mixture_kept),
        "endsKept": (
            (cut.sequences, shape, stage == 0, stage > 0, cut.tp, cut.sequence, 2),
            composition_kept.ends_kept,
        ),
        "oneFOneBInFlight": ((cut.pp, cut.microbatches, stage), pipeline.one_f_one_b_in_flight),
        "held": ((shape, cut, stage, sizes), layout.held),
        "layerProducts": ((small[0], shape, kind, cut.tp, cut.cp), layout.layer_products),
        "layerCore": ((small[0], shape, cut.tp, cut.cp), layout.layer_core),
        "inside": ((lines, cut.dp, cut.tp), Fabric.inside),
        "ring": ((lines, machine, cut.dp, cut.tp), Fabric.ring),
        "message": ((lines, machine, cut.pp, cut.tp), Fabric.message),
        "wait": ((lines, cut.dp, cut.tp), Fabric.wait),
        "leaving": ((lines, cut.ep, cut.tp), Fabric.leaving),
        "pieces": ((shape.hidden**2, cut.dp, shape.layers), fabric.pieces),
        "overlap": (tuple(sent), time_bar.overlap),
        "seconds": ((shape, cut, sizes, machine, reached), layout.seconds),
        "bar": ((shape, cut, sizes, machine, lines, reached), layout.bar),
        "stepFlops": (small[:1] + (shape,), step_flops),
        "utilization": ((draw.uniform(1e12, 1e20), draw.uniform(0.1, 60), cut.dp, machine.flops), roofline.utilization),
    }


def step_flops(batch: int, shape: Shape) -> int:
    """With as many rows as an even load gives."""
    return composition_work.step_flops(batch, shape, batch * shape.positions * shape.chosen)


def test_both_languages_agree(tmp_path):
    draw = random.Random(2020)
    calls = [(name, *call) for _ in range(1000) for name, call in inputs(draw).items()]
    for (name, arguments, original), theirs in zip(calls, answers(FILES, calls, tmp_path), strict=True):
        ours = plain(original(*arguments))
        assert same(theirs, ours), f"{name}{arguments}: {theirs} in JavaScript, {ours} in Python"


def clusters(draw: random.Random) -> tuple:
    """A model, GPUs, a batch, and what the GPUs reach: arguments of the ranking, for which something often fits."""
    heads = draw.choice([8, 12, 32, 64])
    shape = Shape(
        draw.choice([12, 24, 32, 61, 80]), 64 * heads * draw.choice([1, 2]), heads, draw.choice([1024, 4096, 32768]),
        draw.choice([32000, 50257, 128256]), draw.random() < 0.5, draw.choice([0, 0, 8]), draw.random() < 0.5,
        draw.choice([0, 4]), draw.choice([0, 11008]), draw.random() < 0.5, mixture_every=draw.choice([1, 2]),
        rms=draw.random() < 0.5, chosen=draw.choice([1, 2]), expert_inner=draw.choice([0, 512]),
    )  # fmt: skip
    gpus = draw.choice([1, 2, 8, 8, 16, 24, 48])
    machine = draw.choice([each for name, each in roofline.MACHINES.items() if name != "TPU v5e"])
    reached = draw.choice([time_bar.HALF, time_bar.fitted(machine)])
    lines = Fabric(8, reached_out=draw.choice([0.2, 0.8]))
    return (
        shape,
        gpus,
        gpus * draw.choice([1, 4, 32]),
        machine,
        Sizes(*draw.choice([(2, 2, 12), (4, 4, 8)])),
        lines,
        reached,
    )


def test_both_languages_rank_alike(tmp_path):
    """The first five layouts of two hundred cases; among equals any order is right."""
    draw = random.Random(1024)
    cases = [clusters(draw) for _ in range(200)]
    theirs = answers(FILES, [("fastest", case) for case in cases], tmp_path)
    empty = 0
    for case, found in zip(cases, theirs, strict=True):
        ours = layout_search.fastest(*case)
        empty += not ours
        assert [each["seconds"] for each in found] == pytest.approx([each.seconds for each in ours], rel=1e-9), case
        for one, other in list(zip(found, ours, strict=True))[:5]:
            cut = Cut(**one["cut"])
            shape, _, _, machine, sizes, lines, reached = case
            alike = layout.bar(shape, cut, sizes, machine, lines, reached).step == pytest.approx(
                other.seconds, rel=1e-9
            )
            assert cut == other.cut or alike, case
    assert empty < 40


def test_every_function_is_compared():
    functions = {
        line.split()[2].partition("(")[0] for line in FILES[0].read_text().splitlines() if "export function" in line
    }
    assert functions == set(inputs(random.Random(0)))


QWEN_3 = {
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "attention_bias": False,
}
MIXTURE = {"tie_word_embeddings": False, "num_experts_per_tok": 8}
# What the config.json of released weights has, so far as the size depends on it.
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
    },
    "8b": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    },
    "qwen3-0.6b": QWEN_3 | {
        "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16,
        "num_hidden_layers": 28, "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False,
    },
    "mixtral": MIXTURE | {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "num_experts_per_tok": 2, "vocab_size": 32000, "sliding_window": None,
    },
    "deepseek-v3": MIXTURE | {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "max_position_embeddings": 4096,
        "first_k_dense_replace": 3, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_attention_heads": 128, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "topk_method": "noaux_tc", "vocab_size": 129280, "num_nextn_predict_layers": 1,
    },
    "mistral": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    },
    "qwen2": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768,
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    },
    "qwen3-moe": QWEN_3 | MIXTURE | {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "moe_intermediate_size": 768, "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "num_experts": 128, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
}  # fmt: skip
# Mistral 7B v0.1, Qwen 2.5 7B, Qwen 3 30B-A3B.
PUBLISHED = {"mistral": 7_241_732_096, "qwen2": 7_615_616_512, "qwen3-moe": 30_532_122_624}


def test_configs_are_read(tmp_path):
    """Those of our presets give the presets; the others give as many parameters as the weights have."""
    presets = json.loads(calculator.data(ROOT / "minitrain").partition(">")[2].rpartition("<")[0])["models"]
    found = answers(FILES, [("readConfig", (json.dumps(each),)) for each in CONFIGS.values()], tmp_path)
    for name, read in zip(CONFIGS, found, strict=True):
        fields = read["fields"]
        if name in presets:
            assert fields == {field: presets[name][field] for field in fields}, name
            continue
        given: dict[str, Any] = {
            field: value == "yes" if value in ("yes", "no") else value for field, value in fields.items()
        }
        del given["latent"], given["router_bias"]  # which only presets have
        assert composition.model_parameters(shape_of(Model("gpt2", **given))) == PUBLISHED[name]
