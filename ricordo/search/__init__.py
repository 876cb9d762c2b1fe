"""The lexical index of our own: what a text is found by, and how well it answers a question."""
