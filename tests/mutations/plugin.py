"""For pytest (`-p tests.mutations.plugin`): the mutation that a variable of the environment names, in all processes."""

from __future__ import annotations

import os

from minitrain.ranks import forkserver
from tests.mutations import Mutation, mutated

mistake = mutated(eval(os.environ["MINITRAIN_MUTATION"], {"Mutation": Mutation}))
mistake.__enter__()


def pytest_sessionstart() -> None:
    """The ranks are forked from a process that imports this, too."""
    forkserver.PRELOAD.append(__name__)
