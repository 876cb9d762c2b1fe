"""Tools: how one is described to models, run, and turned into a result."""
