"""The sandbox, in which programs of users and models run; other features run theirs by `service.Sandbox`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ricordo.settings import Settings


class SandboxPlugin:
    """Says in `ricordo doctor` which sandbox is in use."""

    def findings(self, settings: "Settings") -> list[str]:
        from ricordo.features.sandbox.service import examine

        return [examine(settings)]


plugin = SandboxPlugin()
