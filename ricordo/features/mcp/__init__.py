"""The Model Context Protocol: tools of its servers for agents, and memory for its clients."""

PARTS = ("client", "oauth", "server")
