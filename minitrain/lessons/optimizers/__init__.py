"""The lessons of `minitrain.optimizers`."""
