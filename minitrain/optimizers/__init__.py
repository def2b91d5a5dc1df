"""Chapter 07, optimizers: what an optimizer keeps for each parameter, and which of them may step a part of a layer.

Adam as the reference, `adam`; smaller states: `adafactor`, `sm3`, `adam8bit`; a step whose length follows each layer's
norm, for large batches: `lars`, `lamb`; and one for whole matrices, `muon`.

The names that the package itself has are full forms, for any model and under ZeRO. The small forms of the same names
are imported from their files: `adafactor.Adafactor`, `lamb.LAMB`, `lars.LARS`, `muon.Muon`.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.optimizers.full.adafactor import Adafactor
    from minitrain.optimizers.full.layer_wise import LAMB, LARS
    from minitrain.optimizers.full.muon import Muon

_HOME = {
    "Adafactor": "full.adafactor",
    "LAMB": "full.layer_wise",
    "LARS": "full.layer_wise",
    "Muon": "full.muon",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
