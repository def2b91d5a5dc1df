"""Build the second device once, into the user's cache; nothing is written into the checkout."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.glob("*.cpp"))  # library.cpp is compiled, and includes the others
NAME = "device_library"
FLAGS = ["-O1", "-g0"]
TESTED = "2.13"  # torch's internals change from version to version; another one is tried
TRIAL = "import torch; x = torch.ones(2, device='cuda'); assert (x + x).tolist() == [2, 2] and x.is_cuda"


def missing() -> str:
    """Why the second device cannot be had here; "" if it can. Another torch than the tested one is tried."""
    if sys.platform != "linux":
        return "the second device is built on Linux only"
    if torch_version()["cuda"] or torch_version()["hip"]:
        return f"torch {torch_version()['__version__']} has GPUs' own kernels; the second device needs its CPU build"
    if not library().exists():
        if failure(library()).exists():
            return failure(library()).read_text()
        if shutil.which(compiler := os.environ.get("CXX", "c++")) is None:
            return f"the second device needs a C++ compiler, and there is no {compiler}"
        if shutil.which("ninja", path=search_path()) is None:
            return "the second device is built with ninja; pip install ninja"
        if not torch_version()["__version__"].startswith(TESTED + "."):
            try:
                build()
            except RuntimeError as error:
                return str(error)
    return ""


@cache
def torch_version() -> dict[str, Any]:
    """torch's version, and what it was built for. It is not imported, which takes seconds."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return runpy.run_path(str(Path(spec.origin).with_name("version.py")))


def library() -> Path:
    """Where the built library is, or will be: a folder for each torch, Python, and state of the sources."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    state = hashlib.sha256(repr((FLAGS, sys.version)).encode())
    for path in [*SOURCES, *sorted(FOLDER.glob("*.h"))]:
        state.update(path.read_bytes())
    return (
        folder
        / "minitrain"
        / "second_device"
        / f"{torch_version()['__version__']}-{state.hexdigest()[:12]}"
        / f"{NAME}.so"
    )


def failure(path: Path) -> Path:
    """The file that says why a library could not be built."""
    return path.parent.with_name(path.parent.name + ".failed")


def search_path() -> str:
    """PATH, and the folder of this Python, where pip puts ninja."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])


def build() -> Path:
    """The library; it is compiled where it is not there yet, which takes a minute.

    Raises:
        RuntimeError: It cannot be built, or does not work; the message has the compiler's last words.
    """
    path = library()
    failed = failure(path)
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    with alone(path.parent.parent / "lock"):  # another process may be building the same
        if path.exists():
            return path
        if failed.exists():
            raise RuntimeError(failed.read_text())
        for left in path.parent.parent.glob("building-*"):  # by one that was killed
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix="building-", dir=path.parent.parent) as folder:
            print("building the second device (a minute, once)", file=sys.stderr, flush=True)
            made = Path(folder, "made")
            made.mkdir()
            problem = words(sys.executable, "-m", "tests.second_device.build", str(made)) or works(made / path.name)
            if problem:
                text = (
                    f"no second device for torch {torch_version()['__version__']}: {problem} (delete {failed} to retry)"
                )
                failed.write_text(text)
                raise RuntimeError(text)
            made.rename(path.parent)
    return path


def works(path: Path) -> str:
    """The last words of a small trial of a library, or "" if it works."""
    site = os.pathsep.join([str(FOLDER / "site"), os.environ.get("PYTHONPATH", "")])
    return words(sys.executable, "-c", TRIAL, SECOND_DEVICE=str(path), SECOND_DEVICE_GPUS="1", PYTHONPATH=site)


def words(*command: str, **environment: str) -> str:
    """Run a command in the checkout: the end of what it says if it fails, else ""."""
    settings = os.environ | {"PATH": search_path()} | environment
    done = subprocess.run(command, cwd=FOLDER.parents[1], env=settings, capture_output=True, text=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return "" if done.returncode == 0 else (errors or lines or [f"status {done.returncode}"])[-1][:500]


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock that processes share."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    from torch.utils import cpp_extension

    # In a process of its own: loading the library changes what torch takes for its devices.
    cpp_extension.load(NAME, [str(FOLDER / "library.cpp")], FLAGS, build_directory=sys.argv[1], is_python_module=False)
