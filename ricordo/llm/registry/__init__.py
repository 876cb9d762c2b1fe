"""The models that can be used here by their handles: chat models, embedding models, and those of organization providers."""
