"""The ledger: tokens, their cost, and daily budgets of agents.

It has an API and a command.
"""

from typing import Any

from ricordo.plugins import Commands


class LedgerPlugin:
    def routes(self) -> list[Any]:
        return ["ricordo.features.operations.ledger.routes"]

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.operations.ledger.cli")]


plugin = LedgerPlugin()
