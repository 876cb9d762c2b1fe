"""Move all data to another database: `ricordo db migrate-to`."""

from ricordo.plugins import Commands


class _Move:
    def commands(self) -> list[Commands]:
        return [Commands("db", "ricordo.features.operations.move.cli")]


plugin = _Move()
