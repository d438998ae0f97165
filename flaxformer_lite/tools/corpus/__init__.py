"""The answers to a corpus, piece by piece: every finished piece is a file, so that a start after an interruption goes on.

`folder.py` has the files of a corpus, `places.py` its folder or URL and the claims on its pieces, `part.py` the share of a process,
`writing.py` the loop over pieces, and `joining.py` makes one file of all.
"""

from flaxformer_lite.tools.corpus.folder import PACKERS, Corpus, Piece, digest
from flaxformer_lite.tools.corpus.joining import join
from flaxformer_lite.tools.corpus.part import Part, part_of_process, typed_part
from flaxformer_lite.tools.corpus.writing import answer_pieces

__all__ = ["PACKERS", "Corpus", "Part", "Piece", "answer_pieces", "digest", "join", "part_of_process", "typed_part"]
