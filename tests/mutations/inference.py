"""Mistakes in the chapter of inference."""

WHY = "a sample is no claim: the trainer's tests compare it in every layout"

FOUND_BY = {
    ("inference.kv_cache", "tokens that differ", "tensor parallelism, 4 ranks: tokens"): [
        ("inference.kv_cache.KVCache.forward", "is_causal=prompt", "is_causal=False"),
    ],
    (
        "tests/inference/test_kv_cache.py::test_logits_do_not_change",
        "the lesson writes one token after the other: no two of them come after others at once",
    ): [
        ("inference.kv_cache.KVCache.forward", ".tril(start)", ".tril(0)"),
    ],
    ("inference.kv_cache", "tokens that differ"): [
        ("inference.kv_cache.KVCache.forward", "self.tokens = end", "self.tokens = start"),
        ("inference.kv_cache.add_caches", "part.places = Onward(caches[0])", "pass"),
        ("inference.kv_cache.generate", "new = logits[:, -1:]", "new = logits[:, :1]"),
    ],
    ("inference.kv_cache", "tokens that"): [
        ("inference.kv_cache.add_caches", "part.rotary.places = Onward(cache)", "pass"),
    ],
    ("inference.pipeline_decode", "tokens that differ"): [
        ("inference.pipeline_decode.decode", "x[:, -1:].argmax", "x[:, :1].argmax"),
    ],
    ("tests/inference/test_kv_cache.py", "a claim about a second text would repeat what the first shows"): [
        ("inference.kv_cache.generate", "cache.tokens = 0", "pass"),
    ],
    ("inference.latent_attention", "tokens, written"): [
        ("inference.latent_attention.rotate", "torch.arange(start, start + seq", "torch.arange(seq"),
        ("inference.latent_attention.LatentAttention.forward", ".triu(start + 1)", ".triu(1)"),
    ],
    ("inference.latent_attention", "output and all gradients: distance"): [
        ("inference.latent_attention.LatentAttention.forward", "(self.head + self", "(self.kv_rank + self"),
        ("inference.latent_attention.LatentAttention.forward", "[c, rotate(rotary, start)]", "[c, rotary]"),
    ],
    ("inference.latent_attention", "output and all gradients: distance", "bytes into all-reduces"): [
        ("inference.latent_attention.LatentAttention.forward", "copy_to_parallel(latent, self.group)", "latent"),
    ],
    ("tests/trainer/test_generate.py::test_every_layout[tp]", WHY): [
        ("trainer.evaluation.generate", "each.tokens = seen", "pass"),
    ],
    ("tests/trainer/test_generate.py::test_every_layout", WHY): [
        ("trainer.evaluation._with_caches", "setattr(part, name, child)", "pass"),
    ],
    ("inference.kv_cache", "bytes of the caches"): [
        ("costs.inference.cache_bytes", "2 * -(-layers", "-(-layers"),
    ],
    ("inference.pipeline_decode", "bytes of this rank's caches"): [
        ("costs.inference.cache_bytes", "-(-layers // pipeline)", "layers"),
    ],
    ("inference.latent_attention", "bytes of the caches"): [
        ("costs.inference.latent_cache_bytes", "(kv_rank + rope)", "2 * kv_rank"),
    ],
    ("inference.latent_attention", "operations for the next token"): [
        ("costs.inference.latent_token_flops", "1 if absorbed else tokens", "1"),
    ],
    ("inference.latent_attention", "operations for the"): [
        ("costs.inference.latent_token_flops", "kv_rank if absorbed else head", "head"),
    ],
    ("inference.kv_cache", "operations to write"): [
        ("costs.inference.token_flops", "4 * layers", "2 * layers"),
    ],
    ("inference.kv_cache", "operations to write 9 tokens with a"): [
        ("costs.inference.with_cache_flops", "range(1, count)", "range(count)"),
    ],
    ("inference.kv_cache", "operations to write 9 tokens without a cache"): [
        ("costs.inference.without_cache_flops", "prompt + i", "prompt"),
    ],
    ("inference.pipeline_decode", "bytes that this rank sends"): [
        ("costs.inference.pipeline_bytes", "count - 1", "count"),
    ],
    ("inference.pipeline_decode", "time for 5 tokens"): [
        ("costs.inference.pipeline_seconds", "max(ranks, groups)", "groups"),
    ],
}
