"""Chapter 12, mixture of experts: a layer of many experts, of which each token uses few, and a router that chooses.

Four routers, each a file with one function `route`: `noisy_top_k`, `gshard`, `switch` let tokens choose experts,
`expert_choice` lets experts choose tokens. `layer` computes with what they chose, and `expert_parallel` puts the
experts on different ranks. `bias_balanced` is a router without an auxiliary loss. Four more have a small form only:
`node_limited` routes to few nodes, `z_loss` keeps logits small, `dropless` is a layer without a capacity,
`shared_experts` adds experts for every token. One router has a full form only, `TopK`, whose idea is `noisy_top_k`
without the noise; `noisy_top_k` and `gshard` have none.

The names that the package itself has are full forms, and the routers among them have the interface
`full.router.Router`. The small forms of the same names are imported from their files: `layer.MoELayer`,
`expert_parallel.ExpertParallel`. `node_limited` has no full form: `bias_balanced` with few nodes for each token.
Also called MoE, sparsely gated layer.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.mixture_of_experts.full.bias_balanced import BiasBalanced
    from minitrain.mixture_of_experts.full.expert_choice import ExpertChoice
    from minitrain.mixture_of_experts.full.expert_parallel import ExpertParallel, split_data_parallel
    from minitrain.mixture_of_experts.full.layer import MoELayer, auxiliary_loss
    from minitrain.mixture_of_experts.full.router import Router
    from minitrain.mixture_of_experts.full.routing import Routing
    from minitrain.mixture_of_experts.full.switch import Switch
    from minitrain.mixture_of_experts.full.top_k import TopK

_HOME = {
    "BiasBalanced": "full.bias_balanced",
    "ExpertChoice": "full.expert_choice",
    "ExpertParallel": "full.expert_parallel",
    "MoELayer": "full.layer",
    "Router": "full.router",
    "Routing": "full.routing",
    "Switch": "full.switch",
    "TopK": "full.top_k",
    "auxiliary_loss": "full.layer",
    "split_data_parallel": "full.expert_parallel",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
