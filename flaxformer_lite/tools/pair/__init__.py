"""A translator from two files: pairs are cleaned and divided, and an ordinary config is chosen for them.

`cleaning.py` has the rules, `lexical.py` learns which words translate each other. `folder.py` reads, divides and writes,
`models.py` has the teachers and the run to start from, `teaching.py` makes the teachers' pairs, `recipe.py` chooses;
`preparing.py` does these once. `making.py` does all of it, and trains.
"""

from flaxformer_lite.tools.pair.cleaning import OF_ANSWERS, RULES, clean
from flaxformer_lite.tools.pair.making import Made, make
from flaxformer_lite.tools.pair.models import Models
from flaxformer_lite.tools.pair.preparing import prepare

__all__ = ["OF_ANSWERS", "RULES", "Made", "Models", "clean", "make", "prepare"]
