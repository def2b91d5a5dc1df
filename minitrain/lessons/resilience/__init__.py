"""The lessons of `minitrain.resilience`."""
