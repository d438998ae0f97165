"""The part of objectives and of heads that answers of models of one pass need. It imports no JAX.

`objectives.py` has the bases of objectives: prompts, names of classes, windows. `heads.py` has the
settings of poolers and of vectors, and their mathematics, for arrays of JAX and of NumPy.
"""
