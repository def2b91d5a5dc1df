"""Chapter 20, inference: a trained model writes, token by token, on one rank or on several.

`kv_cache` keeps what every earlier token's keys and values were, so that a new token costs one token's work. Under
tensor parallelism the same cache is divided with the heads. `latent_attention` keeps one short vector per token for
all heads. `pipeline_decode` keeps several groups of sequences on their way, because one alone leaves all stages but one
idle.
"""
