"""The theory: closed formulas for bytes, messages, memory and time, in pure Python.

Nothing here imports torch or the rest of minitrain, so that a prediction cannot lean on what it predicts. A formula
without a source is derived.
"""
