"""Models: one protocol, adapters for providers, keys of organizations, repair of broken outputs, and a scripted model."""
