"""Embedding models: one from an installed package, and those of the providers."""
