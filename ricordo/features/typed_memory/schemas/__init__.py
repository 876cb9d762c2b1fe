"""Typed memory: blocks with fields, and users' memory for programs without a server.

Programs import `blocks`, `manager`, `rotation`, `client` and `user_blocks` of this package. It adds
nothing to a server.
"""

from ricordo.plugins import Commands


class TypedMemoryPlugin:
    def commands(self) -> list[Commands]:
        """Return no commands: programs import the modules."""
        return []


plugin = TypedMemoryPlugin()
