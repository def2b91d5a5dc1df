"""Models that are known by a name: their sizes and choices, as their papers have them.

`minitrain.composition.settings.Model` begins with one of them.
"""

from __future__ import annotations

from typing import Any, Literal

Preset = Literal[
    "tiny", "gpt2", "xl", "175b", "1t", "7b", "13b", "llama-tiny", "8b", "70b", "405b", "qwen3-0.6b", "mixtral",
    "deepseek-v3",
]  # fmt: skip
LARGE = ("70b", "175b", "405b", "1t", "deepseek-v3")  # presets that no machine of eight GPUs can train


def _sizes(layers: int, hidden: int, heads: int, positions: int, vocabulary: int, **others: Any) -> dict[str, Any]:
    names = ("layers", "hidden", "heads", "positions", "vocabulary")
    return dict(zip(names, (layers, hidden, heads, positions, vocabulary), strict=True)) | others


_LLAMA = {"norm": "rms", "mlp": "swiglu", "biases": "none", "positions_kind": "rope", "tied": False}
_LLAMA_3 = _LLAMA | {"kv_heads": 8, "rope_base": 5e5}
# What is not here is as in GPT-2. Radford et al. 2019 (gpt2, xl); Brown et al. 2020, table 2.1 (7b, 13b, 175b; the
# first two have 32 and 40 layers of 4096 and 5120); Narayanan et al. 2021, table 1 (1t); Grattafiori et al. 2024,
# table 3 (8b, 70b, 405b); Yang et al. 2025, table 1 (qwen3-0.6b); Jiang et al. 2024, table 1 (mixtral); DeepSeek-AI
# 2024, "DeepSeek-V3", §4.2. Where a paper leaves a size out, it is in the weights' config.json.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": _sizes(4, 128, 4, 64, 256),
    "gpt2": _sizes(12, 768, 12, 1024, 50257),
    "xl": _sizes(48, 1600, 25, 1024, 50257),
    "7b": _sizes(32, 4096, 32, 2048, 50257),
    "13b": _sizes(40, 5120, 40, 2048, 50257),
    "175b": _sizes(96, 12288, 96, 2048, 50257),
    "1t": _sizes(128, 25600, 160, 2048, 51200),
    "llama-tiny": _sizes(4, 128, 4, 64, 256, **_LLAMA, kv_heads=2, mlp_hidden=352),
    "8b": _sizes(32, 4096, 32, 8192, 128256, **_LLAMA_3, mlp_hidden=14336),
    "70b": _sizes(80, 8192, 64, 8192, 128256, **_LLAMA_3, mlp_hidden=28672),
    "405b": _sizes(126, 16384, 128, 8192, 128256, **_LLAMA_3, mlp_hidden=53248),
    "qwen3-0.6b": _LLAMA
    | _sizes(28, 1024, 16, 8192, 151936, kv_heads=8, head_size=128, qk_norm=True, mlp_hidden=3072)
    | {"tied": True, "rope_base": 1e6, "norm_eps": 1e-6},
    "mixtral": _LLAMA
    | _sizes(32, 4096, 32, 8192, 32000, kv_heads=8, mlp_hidden=14336, rope_base=1e6)
    | {"experts": 8, "experts_per_token": 2, "router": "top_k", "mixture_every": 1},
    "deepseek-v3": _LLAMA
    | _sizes(61, 7168, 128, 4096, 129280, mlp_hidden=18432, norm_eps=1e-6)
    | {"experts": 256, "experts_per_token": 8, "expert_hidden": 2048, "shared_experts": 1, "router": "bias_balanced"}
    | {"mixture_every": 1, "dense_first": 3, "router_bias": True, "latent": (1536, 512, 128, 64, 128)},
}
