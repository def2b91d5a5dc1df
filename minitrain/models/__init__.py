"""The reference: one GPT for one device, which the chapters cut, shard and replicate."""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.models.config import GPTConfig
    from minitrain.models.gpt import GPT

_HOME = {"GPT": "gpt", "GPTConfig": "config"}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
