"""The full forms of `minitrain.mixture_of_experts`, and what serves them."""
