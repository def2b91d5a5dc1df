"""Text from a run's newest weights, in any layout of ranks.

python -m minitrain.generate runs/train --prompt "The " --tokens 200 --temperature 0.8 --top-k 40
"""

if __name__ == "__main__":
    import sys

    from minitrain.trainer.tools import generate

    sys.exit(generate("minitrain.train"))
