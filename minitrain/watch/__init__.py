"""Instruments that watch communication from outside: checks, the board on which ranks wait, replay and rehearsal.

`calls` is where all of them look: it wraps torch's own verbs, so that what is watched need not know of it.
"""
