"""One pass over whole texts.

`encoder` sorts texts into batches and computes vectors, classes, labels or tokens; `forward` is the pass over given arrays, under
the argument names of Hugging Face's library.
"""
