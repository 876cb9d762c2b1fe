"""Tools: their descriptions for models, their execution and their results."""
