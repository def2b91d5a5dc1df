"""How large models are trained on many GPUs: small modules that really do it, measured against theory."""

import os
import sys

__version__ = "0.1.0"

# `python -m minitrain.…`, also under torchrun: torch's warnings would come once a rank. It reads this as it is loaded.
if sys.argv[:1] == ["-m"]:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
