"""Search in vectors: the nearest documents, exactly; and the figures of ranked lists."""
