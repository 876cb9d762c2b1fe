"""Tools from source code, running code, and tools that read the web."""

PARTS = ("run_code", "source", "web")
