"""Typed memory: blocks with fields, and users' memory for programs without a server. It adds nothing to a server.

Programs import `blocks`, `manager`, `rotation`, `client` and `user_blocks` of this package.
"""

from ricordo.plugins import Commands


class TypedMemoryPlugin:
    requires = ("formats",)

    def commands(self) -> list[Commands]:
        """None: programs import what they need."""
        return []


plugin = TypedMemoryPlugin()
