"""The built-in features: each is a folder that can be deleted with its line here, and the server still starts."""

FEATURES: tuple[str, ...] = (
    "accounts",
    "audit",
    "custom_tools",
    "dolt",
    "erasure",
    "formats",
    "git",
    "ledger",
    "librarian",
    "login",
    "mcp",
    "move",
    "remotes",
    "review",
    "sandbox",
    "traces",
    "typed_memory",
    "vector_services",
    "web",
)
