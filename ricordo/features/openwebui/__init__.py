"""Open WebUI: the mirror of its files and notes, and its notes" routes."""

PARTS = ("mirror", "notes")
REQUIRES = ("files", "memory_care", "openai", "sync")
