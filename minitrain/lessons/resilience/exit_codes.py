"""The lesson of `minitrain.resilience.exit_codes`: processes that really die, and lines of NVIDIA's driver."""

from __future__ import annotations

import signal
import subprocess

from minitrain.comm import World
from minitrain.costs import resilience as costs
from minitrain.lessons import Claim
from minitrain.lessons.rows import Rows
from minitrain.resilience.exit_codes import REPLACE, RETRY, verdict

# SIGTERM is left out: ranks ignore it, and a shell would, too.
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
LINE = "[ 4021.7] NVRM: Xid (PCI:0000:5e:00): {}, pid=17, name=python, {}"
# As the driver prints them, with what NVIDIA lists as the immediate action: to restart the application, which is
# "retry", or to reset or replace something.
DRIVER = (
    (13, "Graphics Exception: ESR 0x405840=0xa204000a", RETRY),
    (48, "An uncorrectable double bit error (DBE) has been detected on GPU", REPLACE),
    (63, "Row Remapper: New row marked for remapping, reset gpu to activate.", RETRY),
    (64, "Row Remapper: Failed to remap row", REPLACE),
    (79, "GPU has fallen off the bus.", REPLACE),
    (94, "Contained: SM (0x1). RST: No, D-RST: No", RETRY),
)


def death(number: signal.Signals) -> int:
    """Let a process end by a signal: the code that a shell around it ends with."""
    kill = f"ulimit -c 0; kill -{number.value} $$"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run(["sh", "-c", f"sh -c '{kill}'; exit $?"], **quiet).returncode


def demo(world: World) -> list[Claim]:
    """Lets processes die, and reads lines of a log; the table shows codes of signals, and what to do after each."""
    rows = Rows("derived")
    for number in SIGNALS:
        what = "exit code of a shell whose process was ended by signal s: 6, 7, 9, 11"
        rows.add(what, "128 + s", costs.exit_code(number), death(number), "1", "POSIX; Bash manual", case=number.name)
    logs = [(LINE.format(xid, text), action) for xid, text, action in DRIVER]
    wrong = sum(verdict(1, log)[0] != action for log, action in logs)
    what = "lines of the driver after which we do not what NVIDIA lists"
    rows.add(what, "0", 0, wrong, "1", "NVIDIA, Xid errors", how="compared")
    return rows.claims()
