"""Accounts: API keys, users, organizations, the identities of older clients, and login; over HTTP and on the command line."""

from typing import Any

from ricordo.plugins import Commands


class AccountsPlugin:
    """Adds the routes and commands of accounts. A user is deleted as `erasure` forgets them."""

    requires = ("erasure",)

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.accounts.keys",
            "ricordo.features.accounts.users",
            "ricordo.features.accounts.organizations",
            "ricordo.features.accounts.identities",
        ]

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.accounts.cli")]


plugin = AccountsPlugin()
