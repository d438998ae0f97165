"""Labels of the words of texts, and the entities that they spell."""
