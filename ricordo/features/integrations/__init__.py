"""Vector services, git and Dolt, until each is a feature of its own."""

from typing import Any


class _Plugin:
    def vector_indexes(self, settings: Any) -> list[Any]:
        """The vector services whose variables are set."""
        from ricordo.integrations import plugin

        return [*plugin.vector_indexes(settings)]

    def memory_remotes(self) -> list[Any]:
        """The kinds of remotes."""
        from ricordo.integrations import plugin

        return [*plugin.memory_remotes()]


plugin = _Plugin()
