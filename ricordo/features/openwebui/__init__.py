"""Open WebUI: the sync of its files and notes, its pipe, and memory in the shape of its notes."""

PARTS = ("mirror", "notes")
REQUIRES = ("files", "memory_care", "openai", "sync")
