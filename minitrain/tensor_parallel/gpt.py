"""A whole GPT in tensor parallelism: a table says which part becomes which, and everything else stays on every rank.

**Idea.** Four kinds of parts hold a matrix that ranks can divide: token table, attention, MLP, head. Each is replaced
by its parallel form (in attention and MLP the first matrices are cut by columns, the last by rows), and so is the loss,
which reads the head's shard. Norms, positions and the biases added after a sum stay whole.

**Source.** Shoeybi et al. 2019, "Megatron-LM", §3. Also called a plan (`parallelize_module`), `tp_plan` (Hugging Face).
**Sent.** Forward: one all-reduce for the embedding, two per block, one all-gather of three numbers per token for the
loss. Backward: two all-reduces per block, and one for the head.
**Cost.** Each rank holds 1/n of these matrices. One that the plan forgets costs memory, and raises no error; head and
loss go together.
The full form, `minitrain.tensor_parallel.full.parallelize`, adds dropout, shared key and value heads, gathered logits,
a report of what is still whole, and checks.
"""

from __future__ import annotations

from fnmatch import fnmatch

from torch import Tensor, nn

from minitrain.comm.messages import Group
from minitrain.models.gpt import GPT
from minitrain.tensor_parallel.attention import ParallelAttention, ParallelMLP
from minitrain.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from minitrain.tensor_parallel.vocab_parallel import VocabParallelEmbedding, VocabParallelHead


class Loss(nn.Module):
    """The loss of this rank's logits; what it needs of the others, it sends itself."""

    def __init__(self, loss: nn.Module, group: Group):
        super().__init__()
        self.group = group

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:  # [batch, seq, vocabulary/n], [batch, seq]
        # Three numbers per token are sent, and no logits.
        return vocab_parallel_cross_entropy(logits, targets, self.group)


PLAN = {
    "embedding.tokens": VocabParallelEmbedding.from_embedding,  # rows of the table
    "blocks.*.attention": ParallelAttention,  # heads
    "blocks.*.mlp": ParallelMLP,  # hidden units
    "head": VocabParallelHead.from_linear,  # logits
    "loss": Loss,
}


def parallelize(gpt: GPT, group: Group = None) -> None:
    """Change a GPT, the same on all ranks, so that each rank holds its part. Nothing is sent."""
    assert gpt.config.dropout == 0, "ranks would drop other elements: use the full form"
    for name, part in list(gpt.named_modules()):
        for pattern, make in PLAN.items():
            if fnmatch(name, pattern):
                # Each makes this rank's part of one layer, and leaves the layer as it is.
                gpt.set_submodule(name, make(part, group))  # type: ignore[bad-argument-type]
    if gpt.config.tied:
        # Both are the same rows of the same table, so one parameter serves again as both.
        gpt.head.weight = gpt.embedding.tokens.weight


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
