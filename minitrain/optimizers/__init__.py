"""Chapter 07, optimizers: what an optimizer keeps for each parameter, and which of them may step a part of a layer.

Adam as the reference, `adam`; smaller states: `adafactor`, `sm3`, `adam8bit`; a step whose length follows each layer's
norm, for large batches: `lars`, `lamb`; and one for whole matrices, `muon`.
"""
