"""What the search finds: chapters and pages before the reference, under the words that people type.

A page's `search` settings and `tags` are those of mkdocs-material's search plugin, in which a tag weighs most.
"""

from __future__ import annotations

import re
from typing import Any

# Pages by their source, with the words that should lead there, whatever the page itself calls the thing.
WORDS = {
    "running": "install installation setup torchrun GPU NCCL CUDA Windows WSL Colab Binder Docker",
    "training": "train trainer layout preset Slurm Kubernetes",
    "lift": "own-model library use-it-in-my-code FSDP parallelize Llama integrate",
    "calculator": "memory-calculator fits-on GPU days OOM out-of-memory",
    "which": "which-parallelism which parallelism decision",
    "explorer": "pipeline-explorer schedules",
    "teaching": "teacher syllabus lectures homework grading slides exam class",
    "player": "step-through animation visualization debugger",
    "claims/index": "claims measured predicted formulas",
    "tutorials/matrix_product": "send receive deadlock point-to-point",
    "tutorials/collectives": "allreduce all-reduce all-gather allgather reduce-scatter broadcast ring tree",
    "tutorials/data_parallel_a": "DDP data-parallelism gradient-accumulation buckets",
    "tutorials/data_parallel_b": "DiLoCo local-SGD",
    "tutorials/roofline": "MFU FLOPs utilization arithmetic-intensity",
    "tutorials/zero_a": "ZeRO-1 ZeRO-2 ZeRO-3 FSDP FSDP2 sharded optimizer-states",
    "tutorials/zero_b": "HSDP hybrid-sharding ZeRO++ hpZ",
    "tutorials/zero_c": "offload offloading ZeRO-Offload ZeRO-Infinity CPU-offload",
    "tutorials/recomputation_a": "activation-checkpointing gradient-checkpointing rematerialization flash-attention",
    "tutorials/precision": "mixed-precision bfloat16 bf16 float16 fp16 fp8 loss-scaling",
    "tutorials/optimizers_a": "Adam AdamW Adafactor Muon 8-bit",
    "tutorials/optimizers_b": "LAMB LARS large-batch batch-size gradient-noise-scale",
    "tutorials/tensor_parallel_a": "tensor-parallelism TP Megatron",
    "tutorials/tensor_parallel_b": "vocab vocabulary vocab-parallel",
    "tutorials/sequence_parallel": "sequence-parallelism",
    "tutorials/context_parallel": "context-parallelism ring-attention Ulysses long-context CP",
    "tutorials/pipeline_parallel_a": "pipeline-parallelism PP GPipe 1F1B bubble bubbles",
    "tutorials/pipeline_parallel_b": "interleaved zero-bubble zero bubble ZB-H1 ZB-V",
    "tutorials/pipeline_parallel_c": "PipeDream asynchronous",
    "tutorials/mixture_of_experts_a": "MoE experts router expert-parallelism",
    "tutorials/composition": "3D-parallelism",
    "tutorials/planning": "planner",
    "tutorials/checkpointing": "checkpoint flash-checkpoint flash-checkpoints flash-checkpointing resume",
    "tutorials/resilience_a": "fault-tolerance restart",
    "tutorials/resilience_b": "hang straggler elastic",
    "tutorials/craft_a": "spike probe perplexity bits-per-byte",
    "tutorials/craft_b": "WSD learning-rate cosine",
    "tutorials/recommender": "embedding-table",
    "tutorials/inference_a": "KV-cache decode prefill speculative-decoding",
    "tutorials/inference_b": "continuous-batching PagedAttention paging",
}
LEFT_OUT = (
    "tutorials/solutions/",
    "reference/index",  # says of each module what its page says
    "reference/costs",
    # What `Ranks`, the player and the planner do behind the scenes.
    "reference/planning/full",
    "reference/player",
    "reference/watch",
    # What full forms are made of.
    *(f"reference/checkpointing/full/{name}" for name in ("shards", "background", "memory", "weights")),
    *(f"reference/mixture_of_experts/full/{name}" for name in ("compute", "routing")),
    *(f"reference/pipeline_parallel/full/{name}" for name in ("actions", "drawing", "simulator")),
    *(f"reference/zero/full/{name}" for name in ("flat_shards", "partition", "sharded")),
    "reference/context_parallel/full/kernels",
    "reference/optimizers/full/layer_wise",
    "reference/recomputation/full/early_stop",
    "reference/sequence_parallel/full/embedding_and_head",
    "reference/tensor_parallel/full/parameter_layout",
    "reference/tensor_parallel/dropout_rng",
    "reference/models/counter_rng",
    *(f"reference/composition/{name}" for name in ("gradients", "ordered_sums")),
    *(f"reference/data/{name}" for name in ("documents", "manifest", "prefetched", "shard_writer")),
    *(f"reference/comm/{name}" for name in ("control", "lock", "seal", "torchrun", "shared_gpus")),
    *(f"reference/trainer/{name}" for name in ("identity", "loaded", "tools")),
    *(f"reference/ranks/{name}" for name in ("failures", "forkserver", "output", "places", "processes", "worker")),
    "claims/",
)
FIRST = (
    "tutorials/",
    "glossary",
    "running",
    "training",
    "index",
    "explorer",
    "player",
    "calculator",
    "which",
    "teaching",
    "claims/index",
)


def settings(uri: str) -> dict[str, Any]:
    """A page's front matter for the search.

    Args:
        uri: Its source, such as "tutorials/zero_a.md".
    """
    name = uri.removesuffix(".md")
    if name.startswith(LEFT_OUT) and name != "claims/index":
        return {"search": {"exclude": True}}
    found: dict[str, Any] = {"search": {"boost": 4}} if name.startswith(FIRST) else {}
    return found | ({"tags": WORDS[name].split()} if name in WORDS else {})


def without_code(html: str) -> str:
    """A page whose code is not searched: in the reference, names and docstrings are on the page already."""
    html = html.replace('<details class="quote"', '<details data-search-exclude class="quote"')
    return re.sub(r'<div class="(?=[^"]*\bhighlight\b)', '<div data-search-exclude class="', html)


def for_the_index(html: str) -> str:
    """A page as the search plugin reads it, whose parser would spend a quarter of a build on marks within words."""
    html = re.sub(r"</?(?:span|m[a-z]+)\b[^>]*>", "", html)
    return re.sub(r"(?s)<h[1-6].*?</h[1-6]>", lambda heading: re.sub(r"\s+", " ", heading[0]), html)
