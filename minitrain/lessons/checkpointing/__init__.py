"""The lessons of `minitrain.checkpointing`."""
