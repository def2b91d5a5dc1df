"""The hooks of the site can be imported, and the site is built once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "hooks"))  # as MkDocs does for a hook

# torch is made impossible to import: the site must build where it is not installed.
BUILD = "import sys; sys.modules['torch'] = None; from mkdocs.__main__ import cli; cli()"


def build(project: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build a site strictly, as `make docs` does."""
    command = [sys.executable, "-c", BUILD, "build", "--strict", "-f", project / "mkdocs.yml", "-d", target]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    pytest.importorskip("material", reason="the site's packages are not installed")
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT, target)
    assert done.returncode == 0, done.stderr
    return target
