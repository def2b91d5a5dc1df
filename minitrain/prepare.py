"""Text as tokens on the disk, for training on more of it than fits into memory.

python -m minitrain.prepare texts --tokenizer bpe --vocabulary 32768
"""

if __name__ == "__main__":
    import sys

    from minitrain.data.prepare import main

    sys.exit(main())
