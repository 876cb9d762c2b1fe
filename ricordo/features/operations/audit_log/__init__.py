"""The audit log: a row for each change and each refusal.

The rows form a chain of hashes, so that a removed or changed row shows.
"""

from typing import Any

from ricordo.domain.scope import ADMIN
from ricordo.plugins import Commands, PluginPage


class AuditLogPlugin:
    """Records requests, lists the records for administrators, and deletes old ones."""

    def tables(self) -> list[Any]:
        from ricordo.features.operations.audit_log.tables import TABLES

        return [*TABLES]

    def middleware(self) -> list[Any]:
        from ricordo.features.operations.audit_log.recorder import AuditRecorder

        return [AuditRecorder]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.operations.audit_log.routes",
            "ricordo.features.operations.audit_log.pages",
        ]

    def jobs(self) -> list[Any]:
        from ricordo.features.operations.audit_log.service import EXPIRY

        return [EXPIRY]

    def commands(self) -> list[Commands]:
        return [Commands("audit", "ricordo.features.operations.audit_log.cli")]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Audit log", "/ui/audit-log", (ADMIN,))]


plugin = AuditLogPlugin()
