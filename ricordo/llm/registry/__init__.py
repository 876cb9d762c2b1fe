"""The usable chat and embedding models by handle, with those of organization providers."""
