"""Run a program with GPUs that this machine does not have, and say what would go wrong on real ones.

python -m tests.second_device --gpus 4 -m minitrain.zero.stage1 --ranks 4
python -m tests.second_device --gpus 2 -m torch.distributed.run --nproc-per-node 2 my_training.py --steps 10
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.second_device import environment, missing, notes

NOTED = 3  # the exit status where the program ended with 0, and the device has noted something


def main() -> int:
    """The program's exit status, or NOTED."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.second_device", description=__doc__, formatter_class=kind)
    parser.add_argument("--gpus", type=int, default=4, help="the number of GPUs (default: 4)")
    program = parser.add_mutually_exclusive_group(required=True)
    program.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="a module, with its arguments")
    program.add_argument("script", nargs="?", help="or a script, with its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if problem := missing():
        parser.exit(2, f"{problem}\n")
    command = ["-m", *options.module] if options.module else [options.script, *options.arguments]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "notes")
        process = subprocess.Popen([sys.executable, *command], env=environment(options.gpus, file))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program gets it, too, and decides
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        status = process.wait()
        seen = notes(file)
    for text in sorted(seen):
        print(f"second device: {text}", file=sys.stderr)
    return status or (NOTED if seen else 0)


if __name__ == "__main__":
    sys.exit(main())
