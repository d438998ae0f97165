"""Parts of texts that answer questions."""
