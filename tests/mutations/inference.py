"""Mistakes in the chapter of inference."""

from tests.mutations import Mutation

CACHE, PIPELINE = "minitrain.inference.kv_cache", "minitrain.inference.pipeline_decode"
LATENT, ALIKE = "minitrain.inference.latent_attention", "output and all gradients: distance"
THEORY = "minitrain.costs.inference"
SAMPLE = "minitrain.trainer.evaluation"
TEXT, WHY = "tests/trainer/test_generate.py", "a sample is no claim: the trainer's tests compare it in every layout"

MUTATIONS = [
    # Practice.
    Mutation(
        f"{CACHE}.KVCache.forward",
        "is_causal=prompt",
        "is_causal=False",
        CACHE,
        ("tokens that differ", "tensor parallelism, 4 ranks: tokens"),
    ),
    Mutation(
        f"{CACHE}.KVCache.forward",
        ".tril(start)",
        ".tril(0)",
        test="tests/inference/test_kv_cache.py::test_logits_do_not_change",
        why="the lesson writes one token after the other: no two of them come after others at once",
    ),
    Mutation(f"{CACHE}.KVCache.forward", "self.tokens = end", "self.tokens = start", CACHE, "tokens that differ"),
    Mutation(f"{CACHE}.add_caches", "part.rotary.places = Onward(cache)", "pass", CACHE, "tokens that"),
    Mutation(f"{CACHE}.add_caches", "part.places = Onward(caches[0])", "pass", CACHE, "tokens that differ"),
    Mutation(f"{CACHE}.generate", "new = logits[:, -1:]", "new = logits[:, :1]", CACHE, "tokens that differ"),
    Mutation(f"{PIPELINE}.decode", "x[:, -1:].argmax", "x[:, :1].argmax", PIPELINE, "tokens that differ"),
    Mutation(
        f"{CACHE}.generate",
        "cache.tokens = 0",
        "pass",
        test="tests/inference/test_kv_cache.py",
        why="a claim about a second text would repeat what the first shows",
    ),
    Mutation(f"{LATENT}.rotate", "torch.arange(start, start + seq", "torch.arange(seq", LATENT, "tokens, written"),
    Mutation(f"{LATENT}.LatentAttention.forward", ".triu(start + 1)", ".triu(1)", LATENT, "tokens, written"),
    Mutation(f"{LATENT}.LatentAttention.forward", "(self.head + self", "(self.kv_rank + self", LATENT, ALIKE),
    Mutation(f"{LATENT}.LatentAttention.forward", "[c, rotate(rotary, start)]", "[c, rotary]", LATENT, ALIKE),
    Mutation(
        f"{LATENT}.LatentAttention.forward",
        "copy_to_parallel(latent, self.group)",
        "latent",
        LATENT,
        (ALIKE, "bytes into all-reduces"),
    ),
    # The trainer's sample.
    Mutation(f"{SAMPLE}.generate", "each.tokens = seen", "pass", test=f"{TEXT}::test_every_layout[tp]", why=WHY),
    Mutation(
        f"{SAMPLE}._with_caches", "setattr(part, name, child)", "pass", test=f"{TEXT}::test_every_layout", why=WHY
    ),
    # Theory.
    Mutation(f"{THEORY}.cache_bytes", "2 * -(-layers", "-(-layers", CACHE, "bytes of the caches"),
    Mutation(f"{THEORY}.cache_bytes", "-(-layers // pipeline)", "layers", PIPELINE, "bytes of this rank's caches"),
    Mutation(f"{THEORY}.latent_cache_bytes", "(kv_rank + rope)", "2 * kv_rank", LATENT, "bytes of the caches"),
    Mutation(f"{THEORY}.latent_token_flops", "1 if absorbed else tokens", "1", LATENT, "operations for the next token"),
    Mutation(f"{THEORY}.latent_token_flops", "kv_rank if absorbed else head", "head", LATENT, "operations for the"),
    Mutation(f"{THEORY}.token_flops", "4 * layers", "2 * layers", CACHE, "operations to write"),
    Mutation(
        f"{THEORY}.with_cache_flops", "range(1, count)", "range(count)", CACHE, "operations to write 9 tokens with a"
    ),
    Mutation(
        f"{THEORY}.without_cache_flops", "prompt + i", "prompt", CACHE, "operations to write 9 tokens without a cache"
    ),
    Mutation(f"{THEORY}.pipeline_bytes", "count - 1", "count", PIPELINE, "bytes that this rank sends"),
    Mutation(f"{THEORY}.pipeline_seconds", "max(ranks, groups)", "groups", PIPELINE, "time for 5 tokens"),
]
