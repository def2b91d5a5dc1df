"""The lock of a folder: while one run, or one `prepare`, writes there, no other can.

Two runs in one folder remove each other's checkpoints and garble each other's lines, and both seem to end well. So rank
0 locks a file of the folder before anything in it is touched, and `launch` tells all ranks of a refusal. The system
takes the lock back when the process ends, however it ends: there is nothing to tidy up after a kill, and an orphan
keeps the lock for as long as it could write. Also called PID file, lockfile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

NAME = ".lock"  # left behind: removing it while another run opens it would give two runs a lock each


class Lock:
    """The lock of a folder.

    Args:
        folder: The run's; it is made where there is none.
        process: The process to name to others: the one that its user knows.
        option: Names another folder.

    Raises:
        ValueError: Another run has it; names its process.
        OSError: The folder cannot be written to.
    """

    def __init__(self, folder: Path, process: int, option: str = "--name"):
        self._folder, self._process, self._option = folder, process, option
        self._take()

    def _take(self) -> None:
        folder, path = self._folder, self._folder / NAME
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            # POSIX, F_SETLK: unlike a lock of flock(), it belongs to the process and not to its children, and it holds
            # between machines where the file system has such locks, as NFS does.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):  # a file system without locks
                print(f"note: {path} cannot be locked ({error.strerror}); start no other run there", file=sys.stderr)
                return
            holder = os.read(self._file, 200).decode(errors="replace").strip()
            os.close(self._file)
            raise ValueError(
                f"{folder} is being written to by {holder or 'another run'}: wait for its end, or use another folder "
                f"with {self._option}. (If the machine of that run has crashed, remove {path}.)"
            ) from None
        with suppress(OSError):  # a full disk: others cannot learn which run has it
            os.truncate(self._file, 0)
            since = datetime.now().astimezone()
            who = f"process {self._process} on {socket.gethostname()}, since {since:%Y-%m-%d %H:%M:%S %Z}\n"
            os.write(self._file, who.encode())

    def keep(self) -> None:
        """Take it again where somebody has removed its file, so that no second run gets in; called now and then."""
        if not os.fstat(self._file).st_nlink:
            self.release()
            self._take()
            print(f"note: {self._folder / NAME} was removed, and is locked again", file=sys.stderr)

    def release(self) -> None:
        os.close(self._file)
