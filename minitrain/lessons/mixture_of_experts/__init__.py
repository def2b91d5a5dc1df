"""The lessons of `minitrain.mixture_of_experts`."""
