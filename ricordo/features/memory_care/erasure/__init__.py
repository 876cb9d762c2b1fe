"""Erasure: forgetting a user, over HTTP and on the command line.

The user is hidden at once. A job then erases the rows, and a signed receipt proves it.
"""

from typing import Any

from ricordo.plugins import Commands


class ErasurePlugin:
    def routes(self) -> list[Any]:
        return ["ricordo.features.memory_care.erasure.routes"]

    def jobs(self) -> list[Any]:
        from ricordo.features.memory_care.erasure.jobs import HANDLERS

        return list(HANDLERS)

    def commands(self) -> list[Commands]:
        return [Commands("memory", "ricordo.features.memory_care.erasure.cli")]


plugin = ErasurePlugin()
