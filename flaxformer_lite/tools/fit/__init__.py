"""A model of one's own from a file of examples: `fit` finds the task, chooses a config, trains, scores and exports.

`data.py` opens files, data sets of the hub, folders of searches and rows from Python. `chat.py` is the recipe for conversations;
those of all other tasks lie with the tasks. `choosing.py` makes a config of a recipe and a model, `making.py` does all of it.
"""

from flaxformer_lite.tools.fit.making import fit

__all__ = ["fit"]
