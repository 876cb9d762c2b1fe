"""The audit of memory on the command line.

It finds junk, duplicates, unsupported lines and secrets, and shows growth.
"""

from ricordo.plugins import Commands


class AuditPlugin:
    def commands(self) -> list[Commands]:
        return [Commands("memory", "ricordo.features.memory_care.audit.cli")]


plugin = AuditPlugin()
