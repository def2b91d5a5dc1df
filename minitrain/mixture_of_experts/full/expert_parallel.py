"""The full form of `minitrain.mixture_of_experts.expert_parallel` adds replicas, whole models, and checks.

The n ranks that share a batch are divided into groups of ep. Each group holds all E experts, and rank r of it the r-th
part, with its gradients and optimizer states; so there are n/ep replicas of an expert. Routing groups are sequences,
and noise belongs to tokens, so no layout changes the result, except for the order of additions.

Open `mixture_of_experts/full/layer.py` and `data_parallel/full/replica.py` first: both classes here extend one of them.
**Source.** Besides GShard: Shazeer et al. 2017, §3.1, where data and model parallelism are first mixed like this.
**Sent.** After backward also gradients: those of experts over their replicas, all others over all n ranks.
**Cost.** `minitrain.costs.mixture_of_experts.all_to_all`; counts: 8 bytes for each expert of another rank.
**Waits for the GPU** once, to read how many rows leave and arrive, after the router's own read.
Also called `ep_size` (DeepSpeed), `ExpertParallel` (torchtitan).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from minitrain.collectives.all_to_all import Carrier
from minitrain.comm import native
from minitrain.comm.clip_grad_norm import shard_along
from minitrain.comm.comm import Collectives, Comm
from minitrain.comm.control import checking, gather_objects
from minitrain.comm.mesh import axes
from minitrain.comm.messages import Handle
from minitrain.data_parallel.full.bucketed import Bucket, pack
from minitrain.data_parallel.full.replica import Replica
from minitrain.mixture_of_experts import all_to_all as carriers
from minitrain.mixture_of_experts.all_to_all import all_to_all
from minitrain.mixture_of_experts.full.compute import WAYS
from minitrain.mixture_of_experts.full.layer import MoELayer
from minitrain.mixture_of_experts.full.routing import Routing


@dataclass(frozen=True)
class Groups:
    """The ranks that this rank talks to; None means everyone.

    Attributes:
        data: Those that share the batch.
        experts: Those of them that hold all experts together.
        replicas: Those of them that hold the same experts as this one.
    """

    data: dist.ProcessGroup | None
    experts: dist.ProcessGroup | None
    replicas: dist.ProcessGroup | None


def split_data_parallel(ep: int) -> Groups:
    """Divide all ranks into groups of `ep` neighbors, each of which holds all experts. Every rank must call it.

    Raises:
        ValueError: `ep` does not divide the number of ranks.
    """
    ranks = dist.get_world_size()
    if ep < 1 or ranks % ep:
        fitting = [count for count in range(1, ranks + 1) if ranks % count == 0]
        raise ValueError(f"ep={ep} does not divide the {ranks} data-parallel ranks; use one of {fitting}")
    mesh = axes(replicas=ranks // ep, experts=ep)
    return Groups(None, mesh["experts"].get_group(), mesh["replicas"].get_group())


def experts_of(rank: int, experts: int, ranks: int) -> range:
    """The experts that rank `rank` of `ranks` holds: consecutive ones, one more on the first ranks if needed.

    Raises:
        ValueError: There are fewer experts than ranks.
    """
    if experts < ranks:
        raise ValueError(f"experts={experts} are too few for {ranks} expert-parallel ranks; use {ranks} at least")
    each, more = divmod(experts, ranks)
    first = rank * each + min(rank, more)
    return range(first, first + each + (rank < more))


class ExpertParallelLayer(MoELayer):
    """A mixture with some of the experts on this rank, under the names that they have on one device.

    All ranks of `groups.experts` call it together, even one without tokens, and all go backward through it.

    Args:
        layer: The whole layer, the same on all ranks. This rank's experts are taken from it.
        groups: The ranks.
        carrier: The function that carries the rows: `all_to_all.native`, or `all_to_all.pairwise` to let the
            ledger see each message.
        check: Tell all ranks of `groups.data` about a router that cannot choose, not only those of `groups.experts`.
            None: in demos and notebooks only; it waits for the slowest rank.

    Attributes:
        held: The experts of each rank of the group.
        received: Rows of the last forward that came from each rank for each of this rank's experts.

    Raises:
        ValueError: There are fewer experts than ranks.
    """

    def __init__(
        self, layer: MoELayer, groups: Groups, carrier: Carrier = carriers.native, check: bool | None = None
    ) -> None:
        every = list(layer.experts.values())
        # As a loop at first: with another way all experts would be laid side by side, those that leave as well.
        super().__init__(layer.router, every, "loop", layer.riding_loss, layer.shared)
        ranks = dist.get_world_size(groups.experts)
        self.held = [experts_of(rank, len(every), ranks) for rank in range(ranks)]
        own = self.held[dist.get_rank(groups.experts)]
        self.experts = nn.ModuleDict({str(number): every[number] for number in own})
        for parameter in self.experts.parameters():
            parameter.data = parameter.data.clone()  # it may be a view of one storage with all experts
            shard_along(parameter, Comm(groups.experts))  # other ranks along this axis have other experts
        self.groups, self.carrier, self.check = groups, carrier, check
        self.received: Int[Tensor, "ranks own"] | None = None
        self._sends, self._receives = [0] * ranks, [0] * ranks  # rows, by the rank at the other end
        self.compute, self.tensor, self.sequence = layer.compute, layer.tensor, layer.sequence
        self.prepare()

    def route(self, tokens: Float[Tensor, "tokens hidden"], groups: int) -> Routing:
        """As on one device; then every rank learns how many rows its experts will receive.

        Raises:
            ValueError: A router could not choose, on this rank or on another. No tokens have been sent.
        """
        routing: Routing | None = None
        problem: ValueError | None = None
        counts = torch.full((self.router.experts,), -1, device=tokens.device)
        try:
            routing = super().route(tokens, groups)
            counts = routing.load()
        except ValueError as error:
            # Not raised yet, since the other ranks wait for our counts; the −1 in them tells of the problem.
            problem = error
        if checking(self.check):
            told = gather_objects(None if problem is None else str(problem), self.groups.data)
            if any(told):
                raise ValueError("; ".join(f"rank {rank}: {text}" for rank, text in enumerate(told) if text))
        self.announce(counts)
        if problem is not None:
            raise problem
        assert routing is not None
        failed = [str(rank) for rank, rows in enumerate(self._receives) if rows < 0]
        if failed:
            raise ValueError(
                f"the router of expert-parallel rank {','.join(failed)} could not choose experts, and its "
                "error there says why; no tokens were sent"
            )
        return routing

    def announce(self, counts: Int[Tensor, " experts"]) -> None:
        """Tell each expert's rank how many rows this rank sends, so that it has room for them; −1: a problem here."""
        ranks, rank = len(self.held), dist.get_rank(self.groups.experts)
        sends, receives = [len(experts) for experts in self.held], [len(self.held[rank])] * ranks
        # The small all-to-all: each rank gets one number from each rank for each of its experts.
        self.received = all_to_all(counts, sends, receives, self.groups.experts, self.carrier).view(ranks, -1)
        # The one read for which the program waits for the GPU: how many rows leave and arrive.
        told = iter(torch.cat([counts, self.received.flatten()]).tolist())
        self._sends = [sum(islice(told, count)) for count in sends]
        self._receives = [sum(islice(told, count)) for count in receives]

    def compute_experts(self, rows: Float[Tensor, "routes hidden"], routing: Routing) -> Float[Tensor, "routes hidden"]:
        """Each row to the rank of its expert, through it, and back."""
        assert self.received is not None
        group, ranks, own = self.groups.experts, *self.received.shape
        sends, receives = self._sends, self._receives
        order = routing.expert.argsort(stable=True)
        # Rows leave, sorted by expert and therefore by rank; those of all ranks for this rank's experts arrive.
        there = all_to_all(rows.index_select(0, order), sends, receives, group, self.carrier)
        # Rows arrive by sender, and those of each sender by expert.
        numbers = torch.arange(own, device=rows.device).repeat(ranks)
        expert = numbers.repeat_interleave(self.received.flatten(), output_size=len(there))
        computed = WAYS[self.compute](list(self.experts.values()), there, expert)
        # Results go back to where their rows came from.
        back = all_to_all(computed, receives, sends, group, self.carrier)
        return back.index_select(0, order.argsort())


class ExpertParallel(Replica):
    """Data parallelism in which each rank holds some of the experts of each mixture in `module`.

    A step looks as in chapter 02. The rank's loss must be weighted by its tokens' part of the batch: where
    ranks have different numbers of tokens or sequences, the sum of losses times n/(tokens of all ranks), and the
    auxiliary loss times n·(sequences of this rank)/(sequences of all ranks).

    **Every gradient is divided by n.** An expert's gradient already holds what the tokens of all ep ranks of its group
    add to it. Added over n/ep replicas it is the sum over n ranks; a mean over replicas would be ep times too large.

    Args:
        module: A model with `MoELayer`s, whole on each rank. All ranks begin with rank 0's parameters; then each
            keeps its own experts only.
        groups: The ranks; see `split_data_parallel`.
        bucket_megabytes: As for `Replica`.
        collectives: Who carries gradients: `native`, or `ring` to let the ledger see every byte.
        carrier: Who carries tokens: `all_to_all.native` or `all_to_all.pairwise`.
        check: As for `ExpertParallelLayer`.

    Attributes:
        module: The model; its state dict has this rank's experts, under the names of one device.
        own_experts: The trainable parameters of this rank's experts, by name.
        shared: All other trainable parameters.
        replicas: The ranks that hold the same experts as this one.
        divisor: The number by which experts' gradients are divided after the sum over replicas: n.

    Raises:
        ValueError: As for `Replica`; or a mixture has fewer experts than `groups.experts` has ranks.

    Examples:
        >>> from minitrain.mixture_of_experts import ExpertParallel, MoELayer, Switch, split_data_parallel
        >>> layer = MoELayer(Switch(64, experts=4), [nn.Linear(64, 64) for _ in range(4)])
        >>> model = ExpertParallel(layer, split_data_parallel(ep=2))  # two experts on each rank
        >>> (model(torch.randn(2, 16, 64)).square().mean() + model.module.auxiliary_loss).backward()
        >>> model.synchronize()
    """

    def __init__(
        self,
        module: nn.Module,
        groups: Groups,
        bucket_megabytes: float = 25.0,
        collectives: Collectives = native,
        carrier: Carrier = carriers.native,
        check: bool | None = None,
    ):
        for layer in module.modules():
            if isinstance(layer, MoELayer):
                experts_of(0, layer.router.experts, dist.get_world_size(groups.experts))  # before anything is sent
        super().__init__(module, Comm(groups.data, collectives), bucket_megabytes)
        self.groups, self.divisor = groups, self.ranks
        self.replicas = Comm(groups.replicas, collectives, False)
        self.module, experts = _spread(module, groups, carrier, check)
        named = dict(self.module.named_parameters())
        self._frozen = {name: p for name, p in named.items() if not p.requires_grad}
        self.trainable = {name: p for name, p in named.items() if p.requires_grad}
        self.own_experts = {name: p for name, p in self.trainable.items() if p in experts}
        self.shared = {name: p for name, p in self.trainable.items() if p not in experts}
        # Experts apart, because their gradients go to fewer ranks.
        self._buckets = [pack(each, bucket_megabytes) for each in (self.shared, self.own_experts)]

    @torch.no_grad()
    def synchronize(self) -> None:
        """Make every gradient that of the mean loss over all ranks, after the last backward of a step."""
        self._begin_synchronize()
        shared, experts = self._buckets
        # Everything but experts: one all-reduce for each bucket gives the mean over the ranks that share the batch.
        started = [(bucket, self._start(bucket, self.comm, self.ranks)) for bucket in shared]
        # Experts: one for each bucket adds their replicas' gradients, each of which holds a group's tokens.
        started += [(bucket, self._start(bucket, self.replicas, self.divisor)) for bucket in experts]
        for bucket, handle in started:
            handle.wait()
            bucket.hand_back()

    def _start(self, bucket: Bucket, comm: Comm, divisor: int) -> Handle:
        for name in bucket.parameters:
            bucket.put(name, self._gradient(name), 1 / divisor)
        return comm.all_reduce(bucket.seal())


def _spread(
    module: nn.Module, groups: Groups, carrier: Carrier, check: bool | None
) -> tuple[nn.Module, set[nn.Parameter]]:
    """The module with its mixtures replaced by expert-parallel ones, and the parameters of this rank's experts."""
    found = {name: layer for name, layer in module.named_modules() if isinstance(layer, MoELayer)}
    experts: set[nn.Parameter] = set()
    for name, layer in found.items():
        spread = ExpertParallelLayer(layer, groups, carrier, check)
        experts.update(spread.experts.parameters())
        # The whole module is a mixture, so there is nothing in which it could be replaced.
        if name == "":
            module = spread
        else:
            module.set_submodule(name, spread)
    return module, experts
