"""OAuth for the MCP server: a person's consent in a browser gives a program access.

It is for programs that cannot send a key.
"""

RESOURCE = "/mcp"
METADATA = "/.well-known/oauth-protected-resource/mcp"
