"""One experiment: every setting that decides its numbers."""
