"""A seal on what ranks tell each other: a code that only the ranks of this run can make.

torch's stores and gloo's connections are open: any user of the machine can connect to them, and write what a rank will
read. So notes and control messages carry a code made with a secret of the run (Krawczyk, Bellare and Canetti 1997,
RFC 2104, "HMAC"), and whatever lacks it is never decoded. The numbers of tensors are sent without, since they are
numbers whoever has written them.
"""

from __future__ import annotations

import hashlib
import hmac

LENGTH = 32  # bytes of a code, and of a secret


class Foreign(RuntimeError):
    """No rank of this run has written this, so it was not read."""


class Seal:
    """Makes and checks codes with what only the ranks of this run know: secrets that were drawn at random."""

    def __init__(self, *secrets: bytes):
        self._secret = hashlib.sha256(b"".join(secrets)).digest()

    def close(self, name: str, data: bytes) -> bytes:
        """The data behind its code; `name` is where it belongs, so that it counts nowhere else."""
        return self._code(name, data) + data

    def open(self, name: str, sealed: bytes) -> bytes:
        """The data of `close`; Foreign if it was written by no rank of this run, or belongs elsewhere."""
        code, data = sealed[:LENGTH], sealed[LENGTH:]
        if not hmac.compare_digest(code, self._code(name, data)):
            raise Foreign(f"{name}: what has arrived was written by no rank of this run, and was not read")
        return data

    def _code(self, name: str, data: bytes) -> bytes:
        return hmac.digest(self._secret + name.encode(), data, "sha256")
