"""Tutoring: courses, their chats and tasks, and the pages of teachers."""

PARTS = ("chat", "courses", "tasks", "teachers")
REQUIRES = ("automation", "documents", "files", "knowledge", "openai", "typed_memory")
