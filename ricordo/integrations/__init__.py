"""Outside systems, one removable folder each. They come in through the same hooks as anyone's plugin.

No module here imports a client library before its first use, and none calls a service that is not configured.
"""

from ricordo.integrations.dolt import DoltRemotes
from ricordo.integrations.git import GitRemotes
from ricordo.memory.remotes import RemoteKind


class IntegrationsPlugin:
    """The plugin that offers the remotes of memory."""

    def memory_remotes(self) -> list[RemoteKind]:
        """The kinds of places that memory can be kept in step with."""
        return [GitRemotes(), DoltRemotes()]


plugin = IntegrationsPlugin()
