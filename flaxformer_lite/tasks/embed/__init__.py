"""Vectors of texts, and the cosines of pairs of vectors."""
