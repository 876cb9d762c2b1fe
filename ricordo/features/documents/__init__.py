"""Agents as documents: agent files, templates, and imports from other servers."""

PARTS = ("agent_files", "imports", "templates")
REQUIRES = ("automation", "custom_tools", "files", "groups", "identity")
