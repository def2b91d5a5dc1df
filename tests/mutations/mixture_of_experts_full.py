"""Mistakes in the exchange of rows."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.collectives.all_to_all.pairwise",
        "places[rank].copy_(parts[rank])",
        "pass",
        "minitrain.mixture_of_experts.all_to_all",
        "elements that differ: there and back",
    ),
    Mutation(
        "minitrain.mixture_of_experts.all_to_all._AllToAll.backward",
        "gradients[0]",
        "gradients[0] * 2",
        "minitrain.mixture_of_experts.all_to_all",
        "elements that differ: there and back",
    ),
    Mutation(
        "minitrain.mixture_of_experts.full.tensor_parallel.PartialMLP.__init__",
        "self.down.rank == 0",
        "True",
        "minitrain.composition.step",
        "losses, norms and weights in 2 steps of AdamW with dropout",
    ),
]
