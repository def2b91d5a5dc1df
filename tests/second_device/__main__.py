"""Run a program with GPUs that this machine does not have.

python -m tests.second_device [--gpus N] [-m MODULE | SCRIPT] [arguments …]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.second_device import environment, missing, notes


def main() -> int:
    """The command's own exit status, or 3 if it was 0 and the device has noted something."""
    parser = argparse.ArgumentParser("python -m tests.second_device", description=__doc__)
    parser.add_argument("--gpus", type=int, default=4, help="number of GPUs (4)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-m MODULE or SCRIPT, with its arguments")
    # argparse takes a leading -m for an option of its own.
    rest = sys.argv[1:]
    split = 0
    while split < len(rest) and rest[split].startswith("--"):
        split += 1 if "=" in rest[split] or rest[split] == "--help" else 2
    options = parser.parse_args(rest[:split])
    if not (command := rest[split:]):
        parser.error("which program? For example: -m minitrain.zero.stage1 --ranks 4")
    if problem := missing():
        parser.exit(2, f"{problem}\n")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "notes")
        status = subprocess.call([sys.executable, *command], env=environment(options.gpus, file))
        seen = notes(file)
    for text in sorted(seen):
        print(f"second device: {text}", file=sys.stderr)
    return status or (3 if seen else 0)


if __name__ == "__main__":
    sys.exit(main())
