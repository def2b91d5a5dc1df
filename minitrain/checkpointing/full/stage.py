"""A stage of ZeRO around any model, as a state that checkpoints can save and load.

**Idea.** A trainer's state is found by `minitrain.checkpointing.full.state`, which knows the trainer's model. Here the
names and shapes are those of the stage's own module, so they are one device's, and any number of ranks and any stage of
ZeRO can go on from the checkpoint; a world of one rank is one device.
"""

from __future__ import annotations

from torch import Tensor

from minitrain.checkpointing.full.shards import Shard, ShardedTensor, State, flat_shards
from minitrain.checkpointing.full.state import make_states
from minitrain.comm.clip_grad_norm import axes_of
from minitrain.zero.full.sharded import Sharded


def state_of(stage: Sharded) -> State:
    """This rank's shards of "model.<parameter>" and, for each state of the optimizer, "optimizer.<state>.<parameter>".

    They are the training's own memory, so one call serves all saves; after a `load` call `stage.restore()`. Buffers,
    frozen parameters, learning-rate schedulers and the data's position are not in it: put what you need of them into
    the `extra` of `save`.

    Raises:
        ValueError: Parameters are also cut by tensor or expert parallelism, whose whole shapes a stage does not know;
            the optimizer keeps states that are neither one number for each element nor a single number.
    """
    stage.wait()
    # Before the first step an optimizer has none, into which states could be read.
    make_states([stage])
    state: State = {}
    for line in stage.lines:
        if line.master is None:
            continue
        if cut := [name for name, parameter in line.parameters.items() if axes_of(parameter)]:
            raise ValueError(
                f"{cut[0]} is cut over other ranks, too; give `save` ShardedTensors that you make yourself"
            )
        kept = {"model": line.master.detach()}
        for kind, value in stage.optimizer.state[line.master].items():
            if not isinstance(value, Tensor) or value.shape not in ((), line.master.shape):
                raise ValueError(f"optimizer: the state {kind!r} is not one for each element; use AdamW, SGD or Muon")
            kept[f"optimizer.{kind}"] = value
        for name, start, stop, offset in line.partition.segments(line.rank):
            shape = line.partition.shapes[name]
            for kind, value in kept.items():
                # A counter is the whole line's. Each parameter gets it, since other layouts have other lines, and the
                # rank that has the parameter's first element writes it.
                counter = value.dim() == 0
                shards = [Shard(value, ())] if counter else flat_shards(value[offset:][: stop - start], shape, start)
                whole = () if counter else tuple(shape)
                state[f"{kind}.{name}"] = ShardedTensor(whole, value.dtype, shards, not counter or start == 0)
    return state
