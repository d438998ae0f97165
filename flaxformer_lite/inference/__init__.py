"""A model and a tokenizer to answers: search, sampling, vectors, classes."""
