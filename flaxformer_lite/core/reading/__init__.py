"""Answers of models that read texts in one pass, as far as they need no JAX: the part of objectives, and heads.

`objectives.py` has the bases of objectives with all that answers need: prompts, names of classes, windows. `heads.py` has the
settings of poolers and of vectors, and their mathematics, for arrays of JAX and of NumPy.
"""
