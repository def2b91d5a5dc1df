"""The lessons of `minitrain.recommender`."""
