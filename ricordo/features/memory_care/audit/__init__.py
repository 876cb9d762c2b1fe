"""The audit of memory: junk, duplicates, unsupported lines, secrets and growth, on the command line."""

from ricordo.plugins import Commands


class AuditPlugin:
    def commands(self) -> list[Commands]:
        return [Commands("memory", "ricordo.features.memory_care.audit.cli")]


plugin = AuditPlugin()
