"""The commands of the core: their options, and calls of the modules that do the work."""
