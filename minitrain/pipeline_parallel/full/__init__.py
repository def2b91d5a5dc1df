"""The full forms of `minitrain.pipeline_parallel`, and what serves them."""
