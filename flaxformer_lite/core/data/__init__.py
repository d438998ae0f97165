"""Batches as a function of (seed, step).

`records` has the shapes of an example, `token_arrays` many of them as arrays. `batch_plan` decides which records make batch s;
`dataset` makes the batch, its rows by the objective (`RowMaker`). `packing` helps objectives to fill rows with documents. This
face has no name that needs JAX.
"""

from flaxformer_lite.core.data.batch_plan import BatchShapes
from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.text.pairs import Pair

__all__ = ["BatchShapes", "Lengths", "Pair", "TokenPair"]
