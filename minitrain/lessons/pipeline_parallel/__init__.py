"""The lessons of `minitrain.pipeline_parallel`."""
