"""Exit codes: from how a process ended and what its log says, whether to try again, replace the node, or stop.

**Idea.** A restart helps if the cause is gone by then. A process that was killed from outside may start again at once;
a GPU whose memory is broken fails again, so its node must be replaced first; a program's own error comes back.

**Source.** Shells: 128 + s after signal s (POSIX, "Exit status for commands"). NVIDIA, "Xid errors": the codes and what
to do immediately. What to do after each exit code is our choice. Llama 3 (Grattafiori et al. 2024, §3.3.4), table 5: of
419 unexpected interruptions in 54 days, 148 were faulty GPUs and 72 their memory.
**Cost.** One pass over the log.
"""

from __future__ import annotations

import re
import signal

RETRY, REPLACE, STOP = "retry", "replace the node", "stop"

XIDS = {
    # The channel is reset and the GPU stays usable; usually the program's own mistake.
    13: (RETRY, "graphics engine exception"),
    31: (RETRY, "memory page fault"),
    43: (RETRY, "GPU stopped processing"),
    # Memory repaired itself, or the damage reached no other process.
    63: (RETRY, "row remapping recorded"),
    94: (RETRY, "contained memory error"),
    # The GPU must be reset or exchanged, which no training can do.
    48: (REPLACE, "double-bit ECC error"),
    64: (REPLACE, "row remapping failed"),
    74: (REPLACE, "NVLink error"),
    79: (REPLACE, "GPU has fallen off the bus"),
    95: (REPLACE, "uncontained memory error"),
}
SIGNALS = {
    signal.SIGKILL: (RETRY, "killed: out of memory, or by the scheduler"),
    signal.SIGTERM: (RETRY, "told to end: preempted"),
    signal.SIGSEGV: (RETRY, "invalid memory access"),
    signal.SIGABRT: (RETRY, "aborted, as NCCL's watchdog does"),
    signal.SIGBUS: (RETRY, "bus error: often a full /dev/shm"),
}


def verdict(code: int, log: str = "") -> tuple[str, str]:
    """What to do, and why. `code` is Popen's, −9, or a shell's, 137: the same death."""
    # The node comes first: whatever a process died of, its GPU is broken.
    found = [XIDS[int(x)] for x in re.findall(r"NVRM: Xid \([^)]*\): (\d+)", log) if int(x) in XIDS]
    if "uncorrectable ECC error" in log:
        found.append((REPLACE, "CUDA: uncorrectable ECC error"))
    broken = [each for each in found if each[0] == REPLACE]
    if code == 0 and not broken:
        return STOP, "done"
    if found:
        return (broken or found)[0]
    # Popen reports minus the signal. In a shell, and so in a container, it is 128 plus.
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        died = signal.Signals(number)
        return SIGNALS.get(died, (STOP, f"ended by {died.name}"))
    return STOP, f"the program's own error, exit code {code}"


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
