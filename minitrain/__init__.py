"""How large models are trained on many GPUs: small modules that really do it, measured against theory."""

__version__ = "0.1.0"
