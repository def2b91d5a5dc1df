"""Which layout? Proposes the fastest ones that fit, before a single GPU is booked; needs neither GPU nor torch.

python -m minitrain.plan --preset 175b --gpus 1024 --gpu a100-80 --tokens 300e9
"""

if __name__ == "__main__":
    import sys

    from minitrain.planning.full.command import main

    sys.exit(main())
