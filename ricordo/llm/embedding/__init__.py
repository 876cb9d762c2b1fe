"""Embedding models: texts in, vectors out. One that comes as a package, and those of the providers."""
