"""A translator from two files: pairs are cleaned and divided, and an ordinary config is chosen for them.

`cleaning.py` has the rules, `lexical.py` learns which words translate each other. `folder.py` reads, divides and writes,
`recipe.py` chooses. `making.py` does all of it, and trains.
"""

from flaxformer_lite.tools.pair.cleaning import RULES, clean
from flaxformer_lite.tools.pair.folder import prepare
from flaxformer_lite.tools.pair.making import Made, make

__all__ = ["RULES", "Made", "clean", "make", "prepare"]
