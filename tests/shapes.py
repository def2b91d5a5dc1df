"""What checks shapes (jaxtyping) and types (beartype; an int will do for a float) in all processes of the tests."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
