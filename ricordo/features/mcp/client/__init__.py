"""MCP: servers whose tools agents call over stdio, SSE or streamable HTTP."""
