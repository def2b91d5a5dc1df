"""The planner: the dry run's tables and times, proposals of layouts, the command, published runs, the curve of scaling, and the game."""
