"""Lists the programs and all demos: `python -m minitrain`, or those about something: `python -m minitrain ring`."""

if __name__ == "__main__":
    import sys

    from minitrain.lessons.listing import main

    sys.exit(main(sys.argv[1:]))
