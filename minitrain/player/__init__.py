"""The player: step through a small form on real ranks, line by line, in a page of its own.

`record.py` watches one rank, `clock.py` puts all ranks on one logical clock, and `page.py` makes a page of the two and
of `player.js`.
"""
