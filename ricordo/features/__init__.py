"""The built-in features: packages that can be deleted, each with its name here."""

FEATURES: tuple[str, ...] = (
    "agent_cards",
    "automation",
    "custom_tools",
    "documents",
    "files",
    "groups",
    "identity",
    "knowledge",
    "letta",
    "librarian",
    "mcp",
    "memory_care",
    "openai",
    "openwebui",
    "operations",
    "sync",
    "tutor",
    "typed_memory",
    "vector_services",
    "web",
)
