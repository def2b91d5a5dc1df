"""Asynchronous checkpoints: values of the moment, one writer, and errors that are not lost."""

from __future__ import annotations

import errno

import pytest
import torch

from minitrain.checkpointing.asynchronous import Asynchronous


def test_shapes_dtypes_and_views():
    saved = []
    saver = Asynchronous(lambda state: saved.append({name: tensor.clone() for name, tensor in state.items()}))
    base = torch.arange(12.0)
    state = {
        "view": base.view(3, 4).T,
        "half": base.to(torch.bfloat16),
        "number": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    saver.save(state)
    saver.wait()
    for name, tensor in state.items():
        assert torch.equal(saved[0][name], tensor) and saved[0][name].dtype == tensor.dtype
        assert not saved[0][name].requires_grad


@pytest.mark.parametrize("asks", ("save", "wait"))
def test_the_error_of_a_write_is_raised_once_by_whatever_comes_next(asks):
    full = [OSError(errno.ENOSPC, "No space left on device")]
    written = []

    def write(state):
        if full:
            raise full.pop()
        written.append(state["a"].item())

    saver, state = Asynchronous(write), {"a": torch.ones(())}
    saver.save(state)
    with pytest.raises(OSError, match="No space left"):
        saver.save(state) if asks == "save" else saver.wait()
    saver.save(state)
    saver.wait()
    assert written == [1.0]
