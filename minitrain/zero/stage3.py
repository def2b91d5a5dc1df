"""ZeRO stage 3: parameters are divided as well, and whole only while their block runs (FSDP).

**Idea.** A block needs its parameters in its forward and its backward, and not in between. So each rank keeps a shard;
before a block runs its parameters are gathered (unshard), and after it they are freed (reshard):
forward: gather 0 | run 0, gather 1 | free 0, run 1, gather 2 | …; backward the same from the last block to the first.
**Source.** Rajbhandari et al. 2020, "ZeRO", §5.3 and §7.2.2; Zhao et al. 2023, "PyTorch FSDP", §3 and §4.
**Sent.** In each micro-batch two all-gathers of the parameters and a reduce-scatter of the gradients: 3Ψ elements.
**Cost.** Each rank holds 1/n of parameters, gradients and optimizer states; besides, at most two blocks' parameters at
once, and in backward one block's gradients, as autograd makes them and side by side. Blocks take and give one tensor.
The full form, `minitrain.zero.full.stage3`, adds any module, sending during backward, dtypes, groups, clipping, checks.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, func, nn

from minitrain.comm.messages import Group, Handle, all_gather, rank_and_size, reduce_scatter


class Unit:
    """A block whose parameters lie in one flat tensor: whole while the block runs, else only this rank's shard."""

    def __init__(self, block: nn.Module, group: Group = None):
        rank, self.ranks = rank_and_size(group)
        flat = nn.utils.parameters_to_vector(block.parameters()).detach()
        # Zeros at the end, so that the ranks divide it.
        self.flat = nn.functional.pad(flat, (0, -flat.numel() % self.ranks)).requires_grad_()  # [padded]
        self.shard = self.flat.detach().chunk(self.ranks)[rank].clone()  # [padded / ranks]
        # The flat gradient is complete only when no operation needs the parameters any more.
        self.flat.register_post_accumulate_grad_hook(self.after_backward)
        # The block keeps its code and its shapes, and no numbers.
        self.block, self.group = block.to("meta"), group
        self.reshard()

    def prefetch(self) -> Handle:
        """Start the all-gather, into the storage that autograd's saved tensors point to."""
        if self.arriving is None:
            self.flat.untyped_storage().resize_(self.flat.nbytes)
            # Each rank brings its shard, and all get the whole parameters.
            # `.data`, because autograd must not see that the values were gone.
            self.arriving = all_gather(self.shard, self.group, into=self.flat.data)
        return self.arriving

    def unshard(self, following: Unit) -> None:
        """Wait for the parameters, and start to gather those of the unit that runs next."""
        self.prefetch().wait()
        following.prefetch()

    def reshard(self) -> None:
        """Free the parameters, and keep the shard."""
        self.flat.untyped_storage().resize_(0)
        self.arriving: Handle | None = None

    def forward(self, x: Tensor, before: Unit, after: Unit) -> Tensor:
        """Run the block; `before` and `after` are its neighbors."""
        named = dict(self.block.named_parameters())
        # The flat tensor has one dtype, and is trained as a whole.
        assert {(p.dtype, p.requires_grad) for p in named.values()} == {(self.flat.dtype, True)}, "frozen or two dtypes"
        self.unshard(after)
        sizes = [p.numel() for p in named.values()]
        # One split, because its backward makes the flat gradient at once; the last part is padding.
        parts: Any = self.flat.split([*sizes, self.flat.numel() - sum(sizes)])
        views = {name: part.view(p.shape) for (name, p), part in zip(named.items(), parts, strict=False)}
        # Strict: buffers would have no numbers.
        y = func.functional_call(self.block, views, x, strict=True)
        self.reshard()
        if y.requires_grad:
            # The block's backward begins with the gradient of its output.
            y.register_hook(lambda gradient: self.unshard(before))
            parts[0].grad_fn.register_prehook(self.before_split)
        return y

    def before_split(self, gradients: Any) -> None:
        """The hook: a parameter without a gradient must not get zeros, with which weight decay would change it."""
        assert all(each is not None for each in gradients[:-1]), "a parameter is unused: use the full form"

    def after_backward(self, flat: Any) -> None:
        """The hook: free the parameters, and keep this rank's shard of the gradient."""
        self.reshard()
        # 1/n before the sum, as DDP does: low precision then cannot overflow.
        gradient, flat.grad = flat.grad.mul_(1 / self.ranks), None
        # Each rank brings all gradients of the unit, and gets the sum of its own shard.
        mean: Any = reduce_scatter(gradient, self.group).wait()  # [padded / ranks]
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad.add_(mean)


class Zero3(nn.Module):
    """A sequence of blocks, with everything divided; used like `Zero1`, with nothing left to synchronize.

    Args:
        module: Its blocks, each with parameters of its own; the same on all ranks. They move into the units.
        optimizer_class: One that steps each element by itself, such as `torch.optim.AdamW`.
        group: The ranks that share the batch; None means everyone.
        **options: Given to `optimizer_class`, as `lr=0.1`.
    """

    unit: Any = Unit

    def __init__(self, module: nn.Sequential, optimizer_class: Any, group: Group = None, **options: Any):
        super().__init__()
        # Blocks would train copies of a tied parameter; an optimizer that mixes elements needs whole tensors.
        assert len(list(module.parameters())) == len(module.state_dict()), "a parameter is tied, or there are buffers"
        assert getattr(optimizer_class, "__name__", "") not in ("Adafactor", "Adam8bit", "LAMB", "LARS", "SM3"), "mixes"
        self.module, self.units = module, [self.unit(block, group) for block in module]
        self.optimizer = optimizer_class([unit.shard for unit in self.units], **options)

    def forward(self, x: Tensor) -> Tensor:
        for number, unit in enumerate(self.units):
            # The first has no unit before it and the last none after it: they name themselves, which is no work.
            x = unit.forward(x, self.units[max(number - 1, 0)], self.units[min(number + 1, len(self.units) - 1)])
        return x

    def step(self) -> None:
        # Sends nothing: new parameters are gathered when they are needed.
        self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
