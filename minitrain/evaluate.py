"""The loss of a run's newest weights on text that was held out of training, in any layout of ranks.

python -m minitrain.evaluate runs/train --data library
"""

if __name__ == "__main__":
    import sys

    from minitrain.trainer.tools import evaluate

    sys.exit(evaluate("minitrain.train"))
