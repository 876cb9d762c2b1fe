"""The usable models by handle: chat models, embedding models, organization providers' models."""
