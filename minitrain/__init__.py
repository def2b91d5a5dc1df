"""How large models are trained on many GPUs: small modules that really do it, with every formula checked by the run."""

__version__ = "0.1.0"
