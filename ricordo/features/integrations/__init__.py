"""Git and Dolt, until each is a feature of its own."""

from typing import Any


class _Plugin:
    def memory_remotes(self) -> list[Any]:
        """The kinds of remotes."""
        from ricordo.integrations import plugin

        return [*plugin.memory_remotes()]


plugin = _Plugin()
