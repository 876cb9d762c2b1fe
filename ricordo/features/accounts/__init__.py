"""Accounts: API keys, users, organizations, the identities of older clients, and login; over HTTP and on the command line."""

from typing import Any

from ricordo.plugins import Commands


class AccountsPlugin:
    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [LazyRouter("ricordo.features.accounts.keys", ("/v1/keys",))]

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.accounts.cli")]


plugin = AccountsPlugin()
