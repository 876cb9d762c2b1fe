"""An MCP server for a person's memory: read, search, add, propose changes.

Its clients are Claude, Cursor and other programs.
"""

from importlib.util import find_spec
from typing import Any

HAS_SDK = find_spec("mcp") is not None


def findings(_settings: Any) -> list[str]:
    """Return a warning for `ricordo doctor` if the server's extra is missing.

    Args:
        _settings: The server's settings; not used.
    """
    return [] if HAS_SDK else ['!no MCP server: install it with pip install "ricordo[mcp]"']
