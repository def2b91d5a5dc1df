"""What makes a Llama or a Qwen of a model of any size."""

LLAMA = {"norm": "rms", "mlp": "swiglu", "biases": "none", "positions_kind": "rope", "rope_base": 1e6, "tied": False}
# With heads of 8, Llama 3.1's rule leaves two of their pairs as they are, mixes one, and slows one down.
QWEN = LLAMA | {"qk_norm": True, "biases": "qkv", "rope_factor": 8.0, "norm_eps": 1e-6, "tied": True, "head_size": 8}
