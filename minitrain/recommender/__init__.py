"""Chapter 19, recommender: embedding tables too large for one machine, trained by servers and workers.

`tables` hold rows by key, `embedding` serves them sparsely, `hybrid` joins them with a data-parallel dense part,
`asynchronous` lets them lag behind it, and `click` is a click model to train with all of these. `serving` brings rows
to processes that answer while training goes on.
What is not here: hot and cold embeddings, caches of tables on a GPU, and TorchRec's planner.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.recommender.embedding import EmbeddingServer, EmbeddingWorker
    from minitrain.recommender.hybrid import HybridTables
    from minitrain.recommender.tables import Table

_HOME = {
    "EmbeddingServer": "embedding",
    "EmbeddingWorker": "embedding",
    "HybridTables": "hybrid",
    "Table": "tables",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
