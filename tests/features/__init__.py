"""The built-in features."""
