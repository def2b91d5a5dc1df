"""3D parallelism on one screen: a step of a GPT on dp × pp × tp ranks, from the small forms of three chapters.

**Idea.** Each technique talks along its own axis of a grid of ranks, and knows nothing of the others. Tensor
parallelism changes what is inside a block, the pipeline decides which blocks a rank has, data parallelism averages what
is left. Two things concern all axes: which ranks hold copies of a gradient, and the norm of the whole gradient.

**Source.** Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
§3. Also called PTD-P.
**Sent.** tp: all-reduces of activations, in each block and for each micro-batch. pp: activations and their gradients,
for each micro-batch. dp: one all-reduce per parameter, once in a step. So tp gets the fastest links: as the last axis
of the grid, its ranks are neighbors.
**Cost.** A rank holds 1/(pp · tp) of the model, and computes 1/(dp · pp · tp) of the step, besides 1F1B's bubble.
The full form is `minitrain.train`, with `layout.py`, `model.py`, `gradients.py` and `step.py` of this chapter, in this
order: every other axis, ZeRO, tied weights, precision, dropout, and checks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.comm import axes
from minitrain.comm.messages import all_reduce, rank_and_size
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel import one_f_one_b
from minitrain.tensor_parallel.clip_grad_norm import gradient_norm
from minitrain.tensor_parallel.gpt import parallelize


class Training:
    """This rank's part of a GPT that is the same on all ranks, and its step."""

    def __init__(self, gpt: GPT, dp: int, pp: int, tp: int, lr: float):
        assert not gpt.config.tied, "the two copies of a tied table would be on two stages: use the full form"
        grid = axes(dp=dp, pp=pp, tp=tp)
        self.dp, self.pp, self.tp = (grid.get_group(name) for name in ("dp", "pp", "tp"))
        # 1. tp: this rank's heads and hidden units of every block, and its rows of the table and of the head.
        parallelize(gpt, self.tp)
        # 2. pp: this rank's layers, of which the embedding is the first, and norm and head are the last.
        layers = [gpt.embedding, *gpt.blocks, nn.Sequential(gpt.norm, gpt.head)]
        stage, stages = rank_and_size(self.pp)
        self.stage = nn.Sequential(*layers[stage * len(layers) // stages : (stage + 1) * len(layers) // stages])
        self.loss, self.hidden = gpt.loss, gpt.config.hidden
        self.optimizer = torch.optim.AdamW(self.stage.parameters(), lr=lr)

    def step(self, inputs: Tensor, targets: Tensor, microbatches: int, clip: float) -> Tensor | None:
        """Train on a batch, [samples, seq], the same on all ranks; on the last stage, this replica's mean loss."""
        # 3. dp: this replica's samples.
        replica, replicas = rank_and_size(self.dp)
        x, y = (each.chunk(replicas)[replica].chunk(microbatches) for each in (inputs, targets))
        # What travels between stages; the shape is all that matters.
        weight = next(self.stage.parameters())
        activations = weight.new_empty(*x[0].shape, self.hidden)  # [samples / (dp · microbatches), seq, hidden]
        loss = one_f_one_b.step(self.stage, x, y, self.loss, activations, self.pp)
        for p in self.stage.parameters():
            assert p.grad is not None, "a parameter is unused: use the full form"
            p.grad /= replicas
            # Along dp alone: along tp shards have no copies, and copies already have equal gradients.
            all_reduce(p.grad, self.dp).wait()
        # The norm of the whole model: over tp each element once, then over the stages.
        square = gradient_norm(self.stage.parameters(), self.tp) ** 2
        all_reduce(square, self.pp).wait()
        for p in self.stage.parameters():
            p.grad *= (clip / (square.sqrt() + 1e-6)).clamp(max=1.0)  # type: ignore[unsupported-operation]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
