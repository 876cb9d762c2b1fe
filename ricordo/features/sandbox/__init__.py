"""The sandbox for programs of users and models; `service.sandbox_of` gives it to other features."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ricordo.settings import Settings

_SERVICE = f"{__name__}.service"


class SandboxPlugin:
    """The sandbox's line in `ricordo doctor`, and its end with the server."""

    def findings(self, settings: "Settings") -> list[str]:
        from ricordo.features.sandbox.service import examine

        return [examine(settings)]

    async def at_end(self, settings: "Settings") -> None:
        if _SERVICE in sys.modules:
            await sys.modules[_SERVICE].close_sandbox_of(settings)


plugin = SandboxPlugin()
