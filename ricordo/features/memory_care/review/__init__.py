"""Commands for a user's memory: blocks, proposals, history and blame."""
