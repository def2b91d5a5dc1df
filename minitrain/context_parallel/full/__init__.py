"""The full form of context parallelism: one attention core with four modes, and what a whole GPT needs around it."""
