"""Accounts: API keys, users, organizations, and identities of older clients.

They are managed over HTTP and on the command line.
"""

from typing import Any

from ricordo.plugins import Commands


class AccountsPlugin:
    """The routes and commands of accounts; `erasure` deletes a user."""

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.identity.accounts.keys",
            "ricordo.features.identity.accounts.users",
            "ricordo.features.identity.accounts.organizations",
            "ricordo.features.identity.accounts.identities",
        ]

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.identity.accounts.cli")]


plugin = AccountsPlugin()
