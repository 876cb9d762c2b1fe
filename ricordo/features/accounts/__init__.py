"""Accounts: API keys, users, organizations, and identities of older clients.

They are managed over HTTP and on the command line.
"""

from typing import Any

from ricordo.plugins import Commands


class AccountsPlugin:
    """The routes and commands of accounts; `erasure` deletes a user."""

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
