"""The planner: the dry run, times, proposals, the command, published runs, the curve of scaling, and the game."""
