"""How large models are trained on many GPUs: small modules that really do it, measured against theory."""

import io
import os
import sys

__version__ = "0.1.0"

# `python -m minitrain.…`, also under torchrun: the start of every command.
if sys.argv[:1] == ["-m"]:
    # torch's warnings would come once a rank. It reads this as it is loaded.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # A letter that the terminal's encoding lacks is no reason to fail: \u2713 is shown in its place.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
