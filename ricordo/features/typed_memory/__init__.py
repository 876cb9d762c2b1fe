"""Typed memory for programs that are no server: import `ricordo.features.typed_features.typed_memory.in_process`."""

from ricordo.plugins import Commands


class TypedMemoryPlugin:
    """Adds nothing to the server: programs import what they need."""

    requires = ("formats",)

    def commands(self) -> list[Commands]:
        """None."""
        return []


plugin = TypedMemoryPlugin()
