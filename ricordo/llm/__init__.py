"""Models: their protocol, adapters for providers, repair of broken answers, and a script."""
