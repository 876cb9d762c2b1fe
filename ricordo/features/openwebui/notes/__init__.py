"""Notes: a user's memory blocks in the format of Open WebUI's notes."""
