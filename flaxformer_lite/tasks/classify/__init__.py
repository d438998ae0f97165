"""Classes of texts and of pairs of texts, or their numbers."""
