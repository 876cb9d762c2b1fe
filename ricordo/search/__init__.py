"""The search index: partitions, write buffers, scores by words and vectors."""
