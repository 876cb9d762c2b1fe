"""The ledger: tokens, their cost, and daily budgets of agents.

It has an API and a command.
"""

from typing import Any

from ricordo.plugins import Commands


class LedgerPlugin:
    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [LazyRouter("ricordo.features.ledger.routes", ("/v1/ledger", "/v1/agents/*/budget"))]

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.ledger.cli")]


plugin = LedgerPlugin()
