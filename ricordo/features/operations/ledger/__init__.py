"""The ledger: what tokens were spent on and what they cost, and the daily budgets of agents, over HTTP and on the command line."""

from typing import Any

from ricordo.plugins import Commands


class LedgerPlugin:
    def routes(self) -> list[Any]:
        return ["ricordo.features.operations.ledger.routes"]

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.operations.ledger.cli")]


plugin = LedgerPlugin()
