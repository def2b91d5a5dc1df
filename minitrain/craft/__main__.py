"""Runs all demos of this chapter: `python -m minitrain.craft --ranks 4`."""

from minitrain.lessons.demo import run_chapter

if __name__ == "__main__":
    run_chapter("minitrain.craft")
