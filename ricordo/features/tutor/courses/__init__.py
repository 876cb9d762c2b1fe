"""Courses: agents, memory blocks and tasks in one TOML file."""
