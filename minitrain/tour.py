"""The tour: every demo once, a small GPT trained on real text, another in every layout, and one table of all claims.

`python -m minitrain.tour --ranks 4`, or `torchrun --nproc-per-node 4 -m minitrain.tour`, or `make tour`.
"""

if __name__ == "__main__":
    import tyro

    from minitrain.lessons.tour import main

    tyro.cli(main, prog="python -m minitrain.tour")
